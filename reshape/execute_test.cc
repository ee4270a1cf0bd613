#include "reshape/execute.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <numeric>
#include <system_error>

#include "checkpoint/file.h"
#include "checkpoint/tensor.h"
#include "reshape/fill.h"
#include "reshape/plan_fixture.h"

namespace reshape {
namespace {

namespace fs = std::filesystem;
using checkpoint::DType;
using checkpoint::ErrorCode;
using checkpoint::FileFault;

std::vector<float> Counting(size_t count) {
  std::vector<float> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0.0F);
  return numbers;
}

class ExecuteTest : public ::testing::Test {
 protected:
  void SetUp() override { folder_ = FreshFolder("execute"); }
  void TearDown() override { checkpoint::SetFileFault(std::nullopt); }

  // A source tensor "w" of this shape, row by row in one storage; more tensors may follow.
  int32_t AddTensor(const std::string& name, std::vector<int64_t> shape,
                    const std::vector<float>& numbers) {
    LogicalTensor tensor;
    tensor.name = tensor.canonical = name;
    tensor.shape = shape;
    const auto storage = StoredNumbers(folder_, name, numbers);
    tensor.states["weight"] = {
        DType::kFloat32, {MakePiece(std::vector<int64_t>(shape.size(), 0), shape, storage, 0)}};
    source_.tensors.push_back(tensor);
    return static_cast<int32_t>(source_.tensors.size()) - 1;
  }

  void Put(int32_t tensor, const Piece& piece) {
    target_.placements.push_back({tensor, "weight", false, piece, DType::kFloat32, 1});
  }

  Plan MakePlan() {
    auto plan = ComposePlan(source_, target_);
    EXPECT_TRUE(plan.ok()) << (plan.ok() ? "" : plan.error().ToString());
    return std::move(plan.value());
  }

  ExecuteOptions Quick(int32_t threads = 2) {
    ExecuteOptions options;
    options.threads = threads;
    options.flush = false;
    return options;
  }

  fs::path folder_;
  Inventory source_;
  Target target_;
};

TEST_F(ExecuteTest, SplitsRowsIntoColumnsOfTwoFiles) {
  const int32_t w = AddTensor("w", {2, 4}, Counting(8));
  const auto left = checkpoint::MakeStorage(DType::kFloat32, 4),
             right = checkpoint::MakeStorage(DType::kFloat32, 5);
  target_.files = {FileOf("tag/left.pt", {left}), FileOf("tag/right.pt", {right})};
  Put(w, MakePiece({0, 0}, {2, 2}, left, 0));
  Put(w, MakePiece({0, 2}, {2, 2}, right, 0));
  ASSERT_TRUE(Execute(MakePlan(), folder_ / "out", Quick()).ok());
  EXPECT_EQ(NumbersOf(folder_ / "out/tag/left.pt", 0), (std::vector<float>{0, 1, 4, 5}));
  EXPECT_EQ(NumbersOf(folder_ / "out/tag/right.pt", 0), (std::vector<float>{2, 3, 6, 7, 0}));
}

TEST_F(ExecuteTest, RunsWithFewerThreadsWhereTheSystemGivesNoMore) {
  const int32_t w = AddTensor("w", {64}, Counting(64));
  for (int i = 0; i < 8; ++i) {
    const auto part = checkpoint::MakeStorage(DType::kFloat32, 8);
    target_.files.push_back(FileOf("tag/" + std::to_string(i) + ".pt", {part}));
    Put(w, MakePiece({i * 8}, {8}, part, 0));
  }
  ExecuteOptions options = Quick(/*threads=*/4);
  int asked = 0;
  options.before_thread = [&asked] {
    if (++asked == 2) throw std::system_error(EAGAIN, std::generic_category());
  };
  ASSERT_TRUE(Execute(MakePlan(), folder_ / "out", options).ok());
  EXPECT_EQ(asked, 2);  // one thread was made; after the refusal no more are asked for
  for (int i = 0; i < 8; ++i) {
    const auto numbers = NumbersOf(folder_ / ("out/tag/" + std::to_string(i) + ".pt"), 0);
    EXPECT_EQ(numbers.front(), static_cast<float>(i * 8));
    EXPECT_EQ(numbers.back(), static_cast<float>(i * 8 + 7));
  }
}

TEST_F(ExecuteTest, LargestFileIsDoneFirst) {
  const int32_t w = AddTensor("w", {111}, Counting(111));
  int64_t at = 0;
  for (const int64_t numel : {1, 100, 10}) {
    const auto part = checkpoint::MakeStorage(DType::kFloat32, numel);
    target_.files.push_back(FileOf("tag/" + std::to_string(numel) + ".pt", {part}));
    Put(w, MakePiece({at}, {numel}, part, 0));
    at += numel;
  }
  std::vector<std::string> order;
  ExecuteOptions options = Quick(/*threads=*/1);
  options.file_finished = [&order](const std::string& path) { order.push_back(path); };
  ASSERT_TRUE(Execute(MakePlan(), folder_ / "out", options).ok());
  EXPECT_EQ(order, (std::vector<std::string>{"tag/100.pt", "tag/10.pt", "tag/1.pt"}));
}

TEST_F(ExecuteTest, WritesTransposedLiteralAndConvertedStorages) {
  const int32_t w = AddTensor("w", {2, 3}, Counting(6));
  const auto transposed = checkpoint::MakeStorage(DType::kFloat32, 6),
             half = checkpoint::MakeStorage(DType::kFloat16, 6);
  const auto step = checkpoint::MakeStorage(DType::kFloat32, 1);
  target_.files = {FileOf("a.pt", {transposed, step, half})};
  Piece piece = MakePiece({0, 0}, {2, 3}, transposed, 0);
  piece.strides = {1, 2};
  Put(w, piece);
  Put(w, MakePiece({0, 0}, {2, 3}, half, 0));
  const float five = 5;
  target_.literals = {{step, std::string(reinterpret_cast<const char*>(&five), sizeof(five))}};
  ASSERT_TRUE(Execute(MakePlan(), folder_ / "out", Quick()).ok());
  EXPECT_EQ(NumbersOf(folder_ / "out/a.pt", 0), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(NumbersOf(folder_ / "out/a.pt", 1), (std::vector<float>{5}));
  const auto file = checkpoint::OpenTorchFile(folder_ / "out/a.pt");
  ASSERT_TRUE(file.ok());
  const auto bytes = checkpoint::StorageBytes(*file.value().storages.at(2));
  uint16_t last;
  std::memcpy(&last, bytes.data() + 10, 2);
  EXPECT_EQ(last, 0x4500);  // 5.0
}

TEST_F(ExecuteTest, LargeStoragesGoInWindowsWithOneSum) {
  // 5 M elements: 20 MB, three windows; a shift by one element, so that no window is a plain copy
  // of a source window.
  const size_t count = 5'000'000;
  const int32_t w = AddTensor("w", {static_cast<int64_t>(count)}, Counting(count));
  const auto all = checkpoint::MakeStorage(DType::kFloat32, static_cast<int64_t>(count) + 1);
  const auto columns = checkpoint::MakeStorage(DType::kFloat32, static_cast<int64_t>(count));
  target_.files = {FileOf("a.pt", {all, columns})};
  Put(w, MakePiece({0}, {static_cast<int64_t>(count)}, all, 1));
  Put(w, MakePiece({0}, {static_cast<int64_t>(count)}, columns, 0));
  ASSERT_TRUE(Execute(MakePlan(), folder_ / "out", Quick(3)).ok());
  const auto shifted = NumbersOf(folder_ / "out/a.pt", 0),
             same = NumbersOf(folder_ / "out/a.pt", 1);
  ASSERT_EQ(shifted.size(), count + 1);
  EXPECT_EQ(shifted[0], 0);
  EXPECT_EQ(std::memcmp(shifted.data() + 1, same.data(), count * sizeof(float)), 0);
  EXPECT_EQ(same, Counting(count));
}

TEST_F(ExecuteTest, EveryWindowOfAStridedCopyIsRight) {
  const int32_t w = AddTensor("w", {4, 3, 5}, Counting(60));
  const auto part = checkpoint::MakeStorage(DType::kFloat32, 36);
  target_.files = {FileOf("a.pt", {part})};
  Put(w, MakePiece({0, 0, 1}, {4, 3, 3}, part, 0));
  const Plan plan = MakePlan();
  const StoragePlan& storage = plan.files[0].storages[0];
  for (int64_t begin = 0; begin < 36; ++begin) {
    for (int64_t end = begin + 1; end <= 36; ++end) {
      std::vector<float> window(static_cast<size_t>(end - begin));
      WindowCopies(storage, {begin, end})
          .Fill({begin, end}, std::as_writable_bytes(std::span(window)));
      for (int64_t i = begin; i < end; ++i) {
        const float expected = static_cast<float>(i / 3 * 5 + 1 + i % 3);
        ASSERT_EQ(window[static_cast<size_t>(i - begin)], expected) << begin << ".." << end;
      }
    }
  }
}

TEST_F(ExecuteTest, CopiesWholeFilesByteForByte) {
  AddTensor("w", {4}, Counting(4));
  target_.files = {{"copy.pt", nullptr, folder_ / "w.pt"}};
  ASSERT_TRUE(Execute(MakePlan(), folder_ / "out", Quick()).ok());
  EXPECT_EQ(checkpoint::ReadSmallFile(folder_ / "w.pt", 1 << 20).value(),
            checkpoint::ReadSmallFile(folder_ / "out/copy.pt", 1 << 20).value());
}

TEST_F(ExecuteTest, NamesTheTensorThatOverflows) {
  const int32_t w = AddTensor("w.large", {2}, {1, 70000});
  const auto half = checkpoint::MakeStorage(DType::kFloat16, 2);
  target_.files = {FileOf("a.pt", {half})};
  Put(w, MakePiece({0}, {2}, half, 0));
  const auto status = Execute(MakePlan(), folder_ / "out", Quick());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kLossyConversion);
  EXPECT_EQ(status.error().where, "w.large");
}

TEST_F(ExecuteTest, LeavesFinishedFilesAloneAndReportsTheOthers) {
  const int32_t w = AddTensor("w", {2}, {1, 2});
  const auto a = checkpoint::MakeStorage(DType::kFloat32, 2),
             b = checkpoint::MakeStorage(DType::kFloat32, 2);
  target_.files = {FileOf("a.pt", {a}), FileOf("b.pt", {b})};
  Put(w, MakePiece({0}, {2}, a, 0));
  Put(w, MakePiece({0}, {2}, b, 0));
  ExecuteOptions options = Quick();
  options.finished = {"a.pt"};
  std::vector<std::string> reported;
  int64_t last = 0;
  const Plan plan = MakePlan();
  options.file_finished = [&](const std::string& path) { reported.push_back(path); };
  options.progress = [&](int64_t bytes) { last = bytes; };
  ASSERT_TRUE(Execute(plan, folder_ / "out", options).ok());
  EXPECT_FALSE(fs::exists(folder_ / "out/a.pt"));
  EXPECT_EQ(reported, (std::vector<std::string>{"b.pt"}));
  EXPECT_GE(last, plan.files[0].bytes);
}

TEST_F(ExecuteTest, NeverOverwritesAFile) {
  const int32_t w = AddTensor("w", {2}, {1, 2});
  const auto a = checkpoint::MakeStorage(DType::kFloat32, 2);
  target_.files = {FileOf("w.pt", {a})};
  Put(w, MakePiece({0}, {2}, a, 0));
  const auto status = Execute(MakePlan(), folder_, Quick());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kTargetExists);
}

// Each call of each kind fails once: an error, or (closing what was only read) a whole result.
TEST_F(ExecuteTest, AFailingCallIsNeverSilentDamage) {
  const int32_t w = AddTensor("w", {2}, {1, 2});
  const auto a = checkpoint::MakeStorage(DType::kFloat32, 2);
  target_.files = {FileOf("a.pt", {a}), {"copy.pt", nullptr, folder_ / "w.pt"}};
  Put(w, MakePiece({0}, {2}, a, 0));
  const Plan plan = MakePlan();
  int64_t failed = 0;
  for (int64_t nth = 1; nth < 200; ++nth) {
    const fs::path out = folder_ / ("out" + std::to_string(nth));
    checkpoint::SetFileFault(FileFault{FileFault::Call::kAny, nth, ENOSPC, false});
    ExecuteOptions options = Quick(1);
    options.flush = true;
    const auto status = Execute(plan, out, options);
    const bool reached = checkpoint::FileFaultCalls() >= nth;
    checkpoint::SetFileFault(std::nullopt);
    if (!reached) break;
    failed += !status.ok();
    if (!status.ok()) continue;
    EXPECT_EQ(NumbersOf(out / "a.pt", 0), (std::vector<float>{1, 2})) << "call " << nth;
    EXPECT_EQ(NumbersOf(out / "copy.pt", 0), (std::vector<float>{1, 2})) << "call " << nth;
  }
  EXPECT_GE(failed, 8);
}

TEST_F(ExecuteTest, ShortWritesAreContinued) {
  const int32_t w = AddTensor("w", {1000}, Counting(1000));
  const auto a = checkpoint::MakeStorage(DType::kFloat32, 1000);
  target_.files = {FileOf("a.pt", {a})};
  Put(w, MakePiece({0}, {1000}, a, 0));
  checkpoint::SetFileFault(FileFault{FileFault::Call::kWrite, 1, 0, true});
  const auto status = Execute(MakePlan(), folder_ / "out", Quick());
  checkpoint::SetFileFault(std::nullopt);
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(NumbersOf(folder_ / "out/a.pt", 0), Counting(1000));
}

TEST_F(ExecuteTest, BuffersStayBelowTheirBoundForAnyThreadCount) {
  for (const int32_t threads : {1, 2, 8, 64, 256, 100000})
    EXPECT_LE(BufferBytes({.threads = threads}), kBufferBytesTotalMax) << threads;
}

}  // namespace
}  // namespace reshape
