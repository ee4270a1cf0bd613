// What must be equal over ranks: two files of one composed model at two tensor ranks, sound until a
// test changes the second.
#include <gtest/gtest.h>

#include "reshape/composed_for_test.h"

namespace reshape {
namespace {

using checkpoint::ErrorCode;
using checkpoint::MakeInt;
using checkpoint::Value;
using checkpoint::WithEntry;

class OneCheckpointTest : public ComposedTest {
 protected:
  // A split weight of 2 x 2 a rank and a norm of 2, which both hold.
  Value Root(int start, const std::vector<float>& norm, int64_t step = 5) {
    const std::vector<float> weight = Sequence(start, 4);
    Value optimizer = FusedOptimizer(composer_, {Join({weight, norm})});
    const Value inner = checkpoint::Get(optimizer, "optimizer_state_dict");
    const Value state = checkpoint::GetIndex(checkpoint::Get(inner, "state"), 0);
    optimizer = WithEntry(
        optimizer, "optimizer_state_dict",
        WithEntry(inner, "state",
                  checkpoint::MakeDict({{MakeInt(0), WithEntry(state, "step", MakeInt(step))}})));
    Value root = ModelFile(composer_, {{"w", {2, 2}, weight}, {"n", {2}, norm}}, optimizer, 2);
    root = WithEntry(root, "global_steps", MakeInt(4));
    return WithEntry(root, "checkpoint_parallel_dimensions",
                     Dict({{"tp_degree", MakeInt(2)}, {"pp_degree", MakeInt(1)}}));
  }
  Value First() { return Root(1, {7, 8}); }
  Value Second() { return Root(11, {7, 8}); }

  checkpoint::Result<Inventory> Read(const Value& first, const Value& second,
                                     const std::string& split = "column") {
    std::filesystem::remove_all(folder_.path() / "step");
    composer_.Write(folder_.path() / "step" / "mp_rank_00_model_states.pt", first);
    composer_.Write(folder_.path() / "step" / "mp_rank_01_model_states.pt", second);
    ReadOptions options;
    options.rules = checkpoint::ParseRules(
                        R"({"name": "mine", "parameters": [{"canonical": "w", "parallel": ")" +
                            split + R"("}, {"canonical": "n", "parallel": "replicated"}]})",
                        "test")
                        .value();
    return ReadInventory(folder_.path() / "step", options);
  }
  checkpoint::Error Refused(const Value& first, const Value& second) {
    const auto result = Read(first, second);
    EXPECT_FALSE(result.ok());
    if (result.ok()) return {};
    EXPECT_EQ(result.error().code, ErrorCode::kInconsistent);
    EXPECT_FALSE(result.error().advice.empty());
    return result.error();
  }

  TorchComposer composer_;
};

TEST_F(OneCheckpointTest, TwoFilesOfOneStepAreRead) {
  const auto result = Read(First(), Second());
  EXPECT_TRUE(result.ok()) << result.error().ToString();
}

TEST_F(OneCheckpointTest, EngineStepsThatDifferAreRefused) {
  const auto error = Refused(First(), WithEntry(Second(), "global_steps", MakeInt(9)));
  EXPECT_EQ(error.found, "global_steps 9");
  EXPECT_EQ(error.expected, "global_steps 4, as in mp_rank_00_model_states.pt");
  EXPECT_TRUE(Contains(error.where, "mp_rank_01_model_states.pt"));
}

TEST_F(OneCheckpointTest, AnEntryOfTheEngineThatOneFileLacksIsRefused) {
  EXPECT_EQ(Refused(First(), checkpoint::WithoutEntry(Second(), "global_steps")).found,
            "no global_steps");
}

TEST_F(OneCheckpointTest, CheckpointVersionsThatDifferAreRefused) {
  EXPECT_EQ(Refused(WithEntry(First(), "checkpoint_version", MakeInt(3)),
                    WithEntry(Second(), "checkpoint_version", MakeInt(2)))
                .found,
            "checkpoint_version 2");
}

// Without Megatron's args the entry is the user's, who may hand it over on one rank alone.
TEST_F(OneCheckpointTest, AnEntryOfTheUserMayBeOnOneRankAlone) {
  EXPECT_TRUE(Read(WithEntry(First(), "iteration", MakeInt(4)), Second()).ok());
}

TEST_F(OneCheckpointTest, OptimizerStepsThatDifferAreRefused) {
  const auto error = Refused(First(), Root(11, {7, 8}, 8));
  EXPECT_EQ(error.found, "optimizer step 8 on tp1-pp0");
  EXPECT_EQ(error.expected, "5, as on tp0-pp0");
}

TEST_F(OneCheckpointTest, AModelFileWithoutAModuleIsRefused) {
  const auto error = Refused(First(), Dict({}));
  EXPECT_TRUE(Contains(error.expected, "module"));
  EXPECT_TRUE(Contains(error.where, "mp_rank_01_model_states.pt"));
  Refused(First(), checkpoint::MakeNone());
  Refused(Dict({}), Second());
}

TEST_F(OneCheckpointTest, FilesThatTradedNamesAreRefused) {
  const auto with_rank = [](const Value& root, int64_t rank) {
    return WithEntry(root, "args", Dict({{"rank", MakeInt(rank)}}));
  };
  EXPECT_EQ(Refused(with_rank(First(), 1), with_rank(Second(), 0)).found,
            "args.rank 0 in mp_rank_01_model_states.pt");
  EXPECT_TRUE(Read(with_rank(First(), 0), with_rank(Second(), 4)).ok());
  EXPECT_TRUE(Read(with_rank(First(), 3), with_rank(Second(), 3)).ok());
}

TEST_F(OneCheckpointTest, ReplicatedWeightsThatDifferAreRefused) {
  const auto error = Refused(First(), Root(11, {7, 9}));
  EXPECT_EQ(error.found, "n with other bytes on tp1-pp0 than on tp0-pp0");
  EXPECT_TRUE(Contains(error.where, "mp_rank_01_model_states.pt"));
}

// Views of one flat storage have no sum of their own.
TEST_F(OneCheckpointTest, ReplicatedViewsThatDifferAreRefused) {
  const auto flat = [&](float last) {
    Value root = Root(last < 9 ? 1 : 11, {7, last});
    const std::vector<float> numbers = Join({Sequence(last < 9 ? 1 : 11, 4), {7, last}});
    const auto storage =
        TorchComposer::StorageOf(composer_.Tensor({6}, numbers, checkpoint::DType::kBFloat16));
    return WithEntry(root, "module",
                     Dict({{"w", TorchComposer::View(storage, 0, {2, 2})},
                           {"n", TorchComposer::View(storage, 4, {2})}}));
  };
  EXPECT_EQ(Refused(flat(8), flat(9)).found, "n with other bytes on tp1-pp0 than on tp0-pp0");
}

TEST_F(OneCheckpointTest, ASplitWeightThatTheRulesCallReplicatedIsRefused) {
  const auto result = Read(First(), Second(), "replicated");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kInconsistent);
  EXPECT_TRUE(Contains(result.error().advice, "rule"));
}

}  // namespace
}  // namespace reshape
