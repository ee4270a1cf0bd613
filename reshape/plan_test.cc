#include "reshape/plan.h"

#include <gtest/gtest.h>

#include "checkpoint/tensor.h"
#include "reshape/plan_fixture.h"

namespace reshape {
namespace {

using checkpoint::DType;
using checkpoint::ErrorCode;

// A [2, 4] tensor whose two column shards lie in two files; the target is what each test makes of
// it.
class PlanTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = FreshFolder("plan");
    left_ = StoredNumbers(folder_, "left", {0, 1, 4, 5});
    right_ = StoredNumbers(folder_, "right", {2, 3, 6, 7});
    LogicalTensor tensor;
    tensor.name = tensor.canonical = "w";
    tensor.shape = {2, 4};
    tensor.states["weight"] = {
        DType::kFloat32,
        {MakePiece({0, 0}, {2, 2}, left_, 0), MakePiece({0, 2}, {2, 2}, right_, 0)}};
    source_.tensors = {tensor};
  }

  Placement Into(const Piece& piece) { return {0, "weight", false, piece, DType::kFloat32, 1}; }
  StatePieces& Weight() { return source_.tensors[0].states["weight"]; }

  std::filesystem::path folder_;
  checkpoint::StoragePtr left_, right_;
  Inventory source_;
  Target target_;
};

TEST_F(PlanTest, ComposesColumnShardsIntoOneFile) {
  const auto whole = checkpoint::MakeStorage(DType::kFloat32, 8);
  target_.files = {FileOf("a.pt", {whole})};
  target_.placements = {Into(MakePiece({0, 0}, {2, 4}, whole, 0))};
  const auto plan = ComposePlan(source_, target_);
  ASSERT_TRUE(plan.ok()) << plan.error().ToString();
  ASSERT_EQ(plan.value().files.size(), 1U);
  const StoragePlan& storage = plan.value().files[0].storages.at(0);
  ASSERT_EQ(storage.copies.size(), 2U);
  EXPECT_EQ(storage.copies[0].source, left_.get());
  EXPECT_EQ(storage.copies[1].block.target_offset, 2);
  EXPECT_EQ(storage.zero_numel, 0);
  EXPECT_EQ(plan.value().copies, 2);
}

TEST_F(PlanTest, DeclaresPaddingAndNewRowsZero) {
  // Rows 0 to 2 of which the source has two, and one element of alignment padding.
  const auto padded = checkpoint::MakeStorage(DType::kFloat32, 13);
  target_.files = {FileOf("a.pt", {padded})};
  target_.placements = {Into(MakePiece({0, 0}, {3, 4}, padded, 0))};
  const auto plan = ComposePlan(source_, target_);
  ASSERT_TRUE(plan.ok()) << plan.error().ToString();
  EXPECT_EQ(plan.value().files[0].storages.at(0).zero_numel, 5);
}

TEST_F(PlanTest, FillsOneStorageInTwoFiles) {
  const auto whole = checkpoint::MakeStorage(DType::kFloat32, 8);
  target_.files = {FileOf("a.pt", {whole}), FileOf("b.pt", {whole})};
  target_.placements = {Into(MakePiece({0, 0}, {2, 4}, whole, 0))};
  const auto plan = ComposePlan(source_, target_);
  ASSERT_TRUE(plan.ok()) << plan.error().ToString();
  EXPECT_EQ(plan.value().files[0].storages.at(0).copies.size(), 2U);
  EXPECT_EQ(plan.value().files[1].storages.at(0).copies.size(), 2U);
}

TEST_F(PlanTest, CarriesSourceStoragesWhole) {
  target_.files = {FileOf("a.pt", {left_})};
  const auto plan = ComposePlan(source_, target_);
  ASSERT_TRUE(plan.ok()) << plan.error().ToString();
  const StoragePlan& storage = plan.value().files[0].storages.at(0);
  ASSERT_EQ(storage.copies.size(), 1U);
  EXPECT_EQ(storage.copies[0].block.numel(), 4);
  EXPECT_EQ(storage.zero_numel, 0);
}

TEST_F(PlanTest, RefusesAHoleInTheSource) {
  Weight().pieces.pop_back();
  const auto whole = checkpoint::MakeStorage(DType::kFloat32, 8);
  target_.files = {FileOf("a.pt", {whole})};
  target_.placements = {Into(MakePiece({0, 0}, {2, 4}, whole, 0))};
  const auto plan = ComposePlan(source_, target_);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, ErrorCode::kInconsistent);
  EXPECT_EQ(plan.error().found, "4 elements in the files");
}

TEST_F(PlanTest, RefusesPiecesThatOverlap) {
  Weight().pieces[1].box.start = {0, 1};
  const auto whole = checkpoint::MakeStorage(DType::kFloat32, 8);
  target_.files = {FileOf("a.pt", {whole})};
  target_.placements = {Into(MakePiece({0, 0}, {2, 4}, whole, 0))};
  const auto plan = ComposePlan(source_, target_);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, ErrorCode::kInconsistent);
}

TEST_F(PlanTest, RefusesAPieceThatLeavesItsStorage) {
  Weight().pieces[1].offset = 1;
  const auto whole = checkpoint::MakeStorage(DType::kFloat32, 8);
  target_.files = {FileOf("a.pt", {whole})};
  target_.placements = {Into(MakePiece({0, 0}, {2, 4}, whole, 0))};
  const auto plan = ComposePlan(source_, target_);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, ErrorCode::kInconsistent);
}

TEST_F(PlanTest, NamesAStateThatTheSourceLacks) {
  const auto whole = checkpoint::MakeStorage(DType::kFloat32, 8);
  target_.files = {FileOf("a.pt", {whole})};
  Placement placement = Into(MakePiece({0, 0}, {2, 4}, whole, 0));
  placement.state = "exp_avg";
  target_.placements = {placement};
  const auto plan = ComposePlan(source_, target_);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, ErrorCode::kMissingFile);
}

TEST_F(PlanTest, NamesAWholeFileThatIsGone) {
  target_.files = {{"a.pt", nullptr, folder_ / "gone.pt"}};
  const auto plan = ComposePlan(source_, target_);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, ErrorCode::kIo);
}

TEST_F(PlanTest, ElementWrittenTwiceIsOurFault) {
  const auto whole = checkpoint::MakeStorage(DType::kFloat32, 8);
  target_.files = {FileOf("a.pt", {whole})};
  target_.placements = {Into(MakePiece({0, 0}, {2, 4}, whole, 0)),
                        Into(MakePiece({0, 0}, {1, 4}, whole, 4))};
  EXPECT_DEATH((void)ComposePlan(source_, target_), "is written twice");
}

// Two halves of the columns of a [2, 4] matrix, as a row split leaves them; then one of them a
// column too far left.
TEST_F(PlanTest, ColumnsOfInterleavedCopiesMayNotMeet) {
  const auto whole = checkpoint::MakeStorage(DType::kFloat32, 8);
  target_.files = {FileOf("a.pt", {whole})};
  Piece left = MakePiece({0, 0}, {2, 2}, whole, 0), right = MakePiece({0, 2}, {2, 2}, whole, 2);
  left.strides = right.strides = {4, 1};
  target_.placements = {Into(left), Into(right)};
  const auto plan = ComposePlan(source_, target_);
  ASSERT_TRUE(plan.ok()) << plan.error().ToString();
  EXPECT_EQ(plan.value().files[0].storages.at(0).zero_numel, 0);
  target_.placements[1].target.offset = 1;
  EXPECT_DEATH((void)ComposePlan(source_, target_), "element 1 is written twice");
}

TEST_F(PlanTest, DigestFollowsTheCopies) {
  const auto whole = checkpoint::MakeStorage(DType::kFloat32, 8);
  target_.files = {FileOf("a.pt", {whole})};
  target_.placements = {Into(MakePiece({0, 0}, {2, 4}, whole, 0))};
  const auto plan = ComposePlan(source_, target_);
  const auto again = ComposePlan(source_, target_);
  target_.placements[0].factor = 2;
  const auto other = ComposePlan(source_, target_);
  ASSERT_TRUE(plan.ok() && again.ok() && other.ok());
  EXPECT_EQ(plan.value().digest, again.value().digest);
  EXPECT_NE(plan.value().digest, other.value().digest);
}

}  // namespace
}  // namespace reshape
