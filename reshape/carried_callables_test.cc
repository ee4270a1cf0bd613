#include "reshape/carried_callables.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/container.h"
#include "checkpoint/tensor.h"
#include "checkpoint/tree.h"
#include "reshape/plan_fixture.h"
#include "reshape/reshape.h"

namespace reshape {
namespace {

namespace fs = std::filesystem;

// A real run with one more entry in the arguments of its second model file.
class CarriedCallablesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = FreshFolder("carried_callables");
    fs::copy(fs::path(SHARDPROOF_SOURCE_DIR) /
                 "fixtures/corpus/megatron_deepspeed/r2b_tp2pp2dp2_z1_fp16/checkpoint",
             folder_ / "run", fs::copy_options::recursive);
    file_ = folder_ / "run/global_step4/mp_rank_01_model_states.pt";
  }

  void Plant(const checkpoint::Value& entry) {
    const auto read = checkpoint::OpenTorchFile(file_);
    ASSERT_TRUE(read.ok());
    const checkpoint::Value args = checkpoint::Get(read.value().root, "args");
    const auto root = checkpoint::WithEntry(read.value().root, "args",
                                            checkpoint::WithEntry(args, "planted", entry));
    const auto fill = [](const checkpoint::Storage& storage, std::span<std::byte> bytes) {
      const auto from = checkpoint::StorageBytes(storage);
      std::copy(from.begin(), from.end(), bytes.begin());
    };
    ASSERT_TRUE(checkpoint::WriteTorchFile(folder_ / "new.pt", root,
                                           checkpoint::StringMemo::kByIdentity, fill)
                    .ok());
    fs::rename(folder_ / "new.pt", file_);
  }

  checkpoint::Result<ReshapeReport> Run() {
    fs::remove_all(folder_ / "out");
    return Reshape(folder_ / "run", folder_ / "out", {.flush = false});
  }

  fs::path folder_, file_;
};

TEST_F(CarriedCallablesTest, DangerousOnesAreRefusedWithTheirPlace) {
  const std::pair<const char*, const char*> dangerous[] = {
      {"posix", "system"},      {"builtins", "eval"},
      {"subprocess", "Popen"},  {"importlib", "import_module"},
      {"functools", "partial"}, {"socket", "socket"},
      {"ctypes", "CDLL"},       {"_pickle", "loads"},
      {"torch.hub", "load"}};
  for (const auto& [module, name] : dangerous) {
    Plant(checkpoint::MakeReduce(module, name, {checkpoint::MakeString("id")}));
    const auto report = Run();
    ASSERT_FALSE(report.ok()) << module;
    EXPECT_EQ(report.error().code, checkpoint::ErrorCode::kUnsupported);
    EXPECT_EQ(report.error().found, std::string(module) + "." + name);
    EXPECT_EQ(report.error().where, file_.string() + ", at args.planted");
    EXPECT_FALSE(fs::exists(folder_ / "out"));
    EXPECT_FALSE(fs::exists(folder_ / "out.partial"));
  }
  // Named alone, it is refused as well: something else may call it.
  Plant(checkpoint::MakeGlobal("posix", "system"));
  EXPECT_FALSE(Run().ok());
}

TEST_F(CarriedCallablesTest, ClassesOfTheUserAreCarriedAndNamed) {
  Plant(checkpoint::MakeList({checkpoint::MakeInstance("lab.config", "Own", nullptr),
                              checkpoint::MakeGlobal("lab.hooks", "scale")}));
  const auto report = Run();
  ASSERT_TRUE(report.ok()) << report.error().ToString();
  int notices = 0;
  for (const Notice& notice : report.value().notices) {
    if (notice.kind != "foreign-classes") continue;
    ++notices;
    EXPECT_EQ(notice.names, (std::vector<std::string>{"lab.config.Own", "lab.hooks.scale"}));
  }
  EXPECT_EQ(notices, 1);
}

}  // namespace
}  // namespace reshape
