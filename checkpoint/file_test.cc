#include "checkpoint/file.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <thread>

#include "checkpoint/test_support.h"

namespace checkpoint {
namespace {

using Call = FileFault::Call;

// Sets a fault for one scope.
struct WithFault {
  explicit WithFault(FileFault fault) { SetFileFault(fault); }
  ~WithFault() { SetFileFault(std::nullopt); }
};

TEST(MappedFileTest, ShowsTheBytesOfTheFile) {
  const TemporaryFolder folder;
  WriteBytes(folder / "a", "some bytes");
  const auto file = MappedFile::Open(folder / "a");
  ASSERT_TRUE(file.ok());
  const auto bytes = file.value()->bytes();
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), "some bytes");
  EXPECT_EQ(file.value()->path(), folder / "a");
}

TEST(MappedFileTest, EmptyFileIsAnEmptySpan) {
  const TemporaryFolder folder;
  WriteBytes(folder / "a", "");
  EXPECT_TRUE(MappedFile::Open(folder / "a").value()->bytes().empty());
}

TEST(MappedFileTest, AbsentFolderAndPipeAreNamed) {
  const TemporaryFolder folder;
  const auto absent = MappedFile::Open(folder / "none");
  ASSERT_FALSE(absent.ok());
  EXPECT_EQ(absent.error().code, ErrorCode::kNotFound);
  const auto directory = MappedFile::Open(folder.path());
  ASSERT_FALSE(directory.ok());
  EXPECT_EQ(directory.error().code, ErrorCode::kIo);
  EXPECT_EQ(directory.error().found, "a folder");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  const auto pipe = MappedFile::Open(folder / "pipe");  // must not wait for a writer
  ASSERT_FALSE(pipe.ok());
  EXPECT_EQ(pipe.error().code, ErrorCode::kIo);
}

TEST(MappedFileTest, ReleasedBytesReadTheSameAgain) {
  const TemporaryFolder folder;
  std::string text(3 << 20, 'x');
  text[4096] = 'y';
  WriteBytes(folder / "a", text);
  const auto file = MappedFile::Open(folder / "a").value();
  EXPECT_EQ(file->bytes()[4096], std::byte{'y'});
  file->Release(100, 1 << 20);
  file->Release(0, 3 << 20);
  file->Release(3 << 20, 0);
  EXPECT_EQ(file->bytes()[4096], std::byte{'y'});
  EXPECT_EQ(file->bytes()[4095], std::byte{'x'});
}

TEST(MappedFileTest, ReleaseKeepsResidentMemoryBounded) {
  const TemporaryFolder folder;
  WriteBytes(folder / "a", std::string(64 << 20, 'x'));
  const auto file = MappedFile::Open(folder / "a").value();
  const auto resident_kilobytes = [] {
    const std::string text = ReadBytes("/proc/self/status");
    return std::stol(text.substr(text.find("RssFile:") + 8));
  };
  const long before = resident_kilobytes();
  unsigned sum = 0;
  constexpr int64_t kWindow = 4 << 20;
  for (int64_t offset = 0; offset < 64 << 20; offset += kWindow) {
    for (int64_t i = 0; i < kWindow; i += 512) {
      sum += static_cast<unsigned>(file->bytes()[static_cast<size_t>(offset + i)]);
    }
    file->Release(offset, kWindow);
    EXPECT_LT(resident_kilobytes() - before, 16 << 10);
  }
  EXPECT_EQ(sum, (64u << 20) / 512 * 'x');
}

TEST(MappedFileTest, ChangeOfTheFileIsInconsistent) {
  const TemporaryFolder folder;
  WriteBytes(folder / "a", "some bytes");
  const auto open = [&] { return MappedFile::Open(folder / "a").value(); };
  const auto sound = open();
  EXPECT_TRUE(sound->CheckUnchanged().ok());

  WriteBytes(folder / "a", "some bytes, and more");
  ASSERT_FALSE(sound->CheckUnchanged().ok());
  EXPECT_EQ(sound->CheckUnchanged().error().code, ErrorCode::kInconsistent);
  EXPECT_EQ(sound->CheckUnchanged().error().found, "20 bytes now");

  const auto touched = open();
  std::filesystem::last_write_time(
      folder / "a", std::filesystem::last_write_time(folder / "a") + std::chrono::nanoseconds(1));
  ASSERT_FALSE(touched->CheckUnchanged().ok());
  EXPECT_EQ(touched->CheckUnchanged().error().code, ErrorCode::kInconsistent);

  const auto replaced = open();
  WriteBytes(folder / "b", "some bytes, and less");
  std::filesystem::last_write_time(folder / "b", std::filesystem::last_write_time(folder / "a"));
  std::filesystem::rename(folder / "b", folder / "a");
  ASSERT_FALSE(replaced->CheckUnchanged().ok());
  EXPECT_EQ(replaced->CheckUnchanged().error().found, "another file under this name");

  const auto removed = open();
  std::filesystem::remove(folder / "a");
  ASSERT_FALSE(removed->CheckUnchanged().ok());
  EXPECT_EQ(removed->CheckUnchanged().error().code, ErrorCode::kNotFound);
}

TEST(OutputFileTest, WritesInAnyOrderAndHolesAreZero) {
  const TemporaryFolder folder;
  const auto file = OutputFile::Create(folder / "a", 12).value();
  EXPECT_TRUE(file->Write(8, AsBytes("tail")).ok());
  EXPECT_TRUE(file->Write(0, AsBytes("head")).ok());
  EXPECT_TRUE(file->Write(12, {}).ok());
  EXPECT_TRUE(file->Close(true).ok());
  EXPECT_EQ(ReadBytes(folder / "a"), std::string("head\0\0\0\0tail", 12));
}

TEST(OutputFileTest, IsSparseUntilWritten) {
  const TemporaryFolder folder;
  const auto file = OutputFile::Create(folder / "a", int64_t{1} << 34).value();
  struct stat status {};
  ASSERT_EQ(::stat((folder / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_size, int64_t{1} << 34);
  EXPECT_LT(status.st_blocks, 64);
}

TEST(OutputFileTest, ManyThreadsWriteTheirOwnRanges) {
  const TemporaryFolder folder;
  const auto file = OutputFile::Create(folder / "a", 8 * 1000).value();
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&file, t] {
      const std::string text(10, static_cast<char>('a' + t));
      for (int i = 0; i < 100; ++i) EXPECT_TRUE(file->Write(t * 1000 + i * 10, AsBytes(text)).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(file->Close(false).ok());
  const std::string all = ReadBytes(folder / "a");
  for (int t = 0; t < 8; ++t) {
    EXPECT_EQ(all.substr(static_cast<size_t>(t) * 1000, 1000),
              std::string(1000, static_cast<char>('a' + t)));
  }
}

TEST(OutputFileTest, NeverOverwrites) {
  const TemporaryFolder folder;
  WriteBytes(folder / "a", "kept");
  const auto file = OutputFile::Create(folder / "a", 3);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, ErrorCode::kTargetExists);
  EXPECT_FALSE(file.error().advice.empty());
  EXPECT_EQ(ReadBytes(folder / "a"), "kept");
  const auto nowhere = OutputFile::Create(folder / "none/a", 3);
  ASSERT_FALSE(nowhere.ok());
  EXPECT_EQ(nowhere.error().code, ErrorCode::kNotFound);
}

TEST(OutputFileTest, NoSpaceForTheSizeLeavesNoFile) {
  const TemporaryFolder folder;
  const WithFault fault({.call = Call::kResize, .nth = 1, .error_number = ENOSPC});
  const auto file = OutputFile::Create(folder / "a", 3);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, ErrorCode::kIo);
  EXPECT_NE(file.error().advice.find("full"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));
}

TEST(OutputFileTest, SizeLimitOfTheProcessIsReported) {
  const TemporaryFolder folder;
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  struct rlimit low = before;
  low.rlim_cur = 4096;
  ASSERT_EQ(::signal(SIGXFSZ, SIG_IGN) == SIG_ERR, false);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  const auto file = OutputFile::Create(folder / "a", 1 << 20);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, ErrorCode::kIo);
  EXPECT_NE(file.error().advice.find("ulimit -f"), std::string::npos);
}

TEST(OutputFileTest, ShortWritesAreContinued) {
  const TemporaryFolder folder;
  const WithFault fault({.call = Call::kWrite, .nth = 1, .sticky = true});
  const auto file = OutputFile::Create(folder / "a", 10).value();
  EXPECT_TRUE(file->Write(0, AsBytes("0123456789")).ok());
  EXPECT_GE(FileFaultCalls(), 4);  // 5, 2, 1, 1, 1
  EXPECT_TRUE(file->Close(false).ok());
  EXPECT_EQ(ReadBytes(folder / "a"), "0123456789");
}

TEST(OutputFileTest, InterruptedWriteIsRepeated) {
  const TemporaryFolder folder;
  const WithFault fault({.call = Call::kWrite, .nth = 1, .error_number = EINTR});
  const auto file = OutputFile::Create(folder / "a", 3).value();
  EXPECT_TRUE(file->Write(0, AsBytes("abc")).ok());
  EXPECT_TRUE(file->Close(false).ok());
  EXPECT_EQ(ReadBytes(folder / "a"), "abc");
}

TEST(OutputFileTest, FailedWriteSyncAndCloseSayWhatAndWhere) {
  const TemporaryFolder folder;
  struct Case {
    Call call;
    int error_number;
    std::string expected;
  };
  const Case cases[] = {{Call::kWrite, ENOSPC, "to write 3 bytes at 0"},
                        {Call::kWrite, EIO, "to write 3 bytes at 0"},
                        {Call::kSync, EIO, "to flush to the device"},
                        {Call::kClose, EDQUOT, "to close"}};
  int number = 0;
  for (const Case& one : cases) {
    const WithFault fault({.call = one.call, .nth = 1, .error_number = one.error_number});
    const auto path = folder / std::to_string(number++);
    const auto file = OutputFile::Create(path, 3).value();
    Status status = file->Write(0, AsBytes("abc"));
    if (status.ok()) status = file->Close(true);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kIo);
    EXPECT_EQ(status.error().expected, one.expected);
    EXPECT_EQ(status.error().where, path.string());
    EXPECT_FALSE(status.error().advice.empty());
  }
}

TEST(OutputFileDeathTest, WriteBehindTheEndIsOurFault) {
  const TemporaryFolder folder;
  const auto file = OutputFile::Create(folder / "a", 3).value();
  EXPECT_DEATH((void)file->Write(1, AsBytes("abc")), "CHECK failed");
  EXPECT_DEATH((void)file->Write(-1, AsBytes("a")), "CHECK failed");
}

TEST(SmallFileTest, ReadsUpToItsBound) {
  const TemporaryFolder folder;
  WriteBytes(folder / "a", "global_step3");
  EXPECT_EQ(ReadSmallFile(folder / "a", 12).value(), "global_step3");
  const auto above = ReadSmallFile(folder / "a", 11);
  ASSERT_FALSE(above.ok());
  EXPECT_EQ(above.error().code, ErrorCode::kLimitExceeded);
  EXPECT_EQ(ReadSmallFile(folder / "none", 11).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(ReadSmallFile(folder.path(), 11).error().code, ErrorCode::kIo);
}

TEST(SmallFileTest, WholeWhenReadsFallShort) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 2000; ++i) text += std::to_string(i);
  WriteBytes(folder / "a", text);
  const WithFault fault({.call = Call::kRead, .nth = 1, .sticky = true});
  EXPECT_EQ(ReadSmallFile(folder / "a", 1 << 20).value(), text);
}

TEST(SmallFileTest, ReplacesAsAWholeAndLeavesNothingBeside) {
  const TemporaryFolder folder;
  EXPECT_TRUE(WriteSmallFile(folder / "latest", "one", true).ok());
  EXPECT_TRUE(WriteSmallFile(folder / "latest", "two", false).ok());
  EXPECT_EQ(ReadBytes(folder / "latest"), "two");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
  EXPECT_EQ(WriteSmallFile(folder / "none/latest", "x", false).error().code, ErrorCode::kNotFound);
}

// The n-th call fails, for n = 1, 2, ... until the run completes; once, and from then on.
TEST(SmallFileTest, AnyFailedCallKeepsTheOldContent) {
  const TemporaryFolder folder;
  int failures = 0;
  for (const bool sticky : {false, true}) {
    for (int64_t nth = 1;; ++nth) {
      WriteBytes(folder / "latest", "old");
      Status status = Done{};
      int64_t calls = 0;
      {
        const WithFault fault(
            {.call = Call::kAny, .nth = nth, .error_number = EIO, .sticky = sticky});
        status = WriteSmallFile(folder / "latest", "new", true);
        calls = FileFaultCalls();
      }
      if (calls < nth) break;
      ++failures;
      const std::string now = ReadBytes(folder / "latest");
      EXPECT_TRUE(now == "old" || now == "new") << now;
      EXPECT_TRUE(!status.ok() || now == "new") << nth;
      EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1) << nth;
    }
  }
  EXPECT_GE(failures, 12);
}

TEST(SmallFileTest, KnowsTheTemporariesItLeavesWhenKilled) {
  EXPECT_EQ(NameOfTemporary(".latest.partial-123"), "latest");
  EXPECT_EQ(NameOfTemporary("..journal.partial-4"), ".journal");
  for (const char* other :
       {"latest", "latest.partial-1", ".latest.partial-", ".partial-1", ".latest.partial-1x", ""})
    EXPECT_EQ(NameOfTemporary(other), "") << other;
}

TEST(FolderTest, SyncNamesWhatFailed) {
  const TemporaryFolder folder;
  EXPECT_TRUE(SyncFolder(folder.path()).ok());
  EXPECT_EQ(SyncFolder(folder / "none").error().code, ErrorCode::kNotFound);
  const WithFault fault({.call = Call::kSync, .nth = 1, .error_number = EIO});
  EXPECT_EQ(SyncFolder(folder.path()).error().code, ErrorCode::kIo);
}

TEST(MappedFileTest, FailedCallsAreReported) {
  const TemporaryFolder folder;
  WriteBytes(folder / "a", "x");
  for (const auto& [call, number] :
       {std::pair{Call::kOpen, EACCES}, {Call::kStat, EIO}, {Call::kMap, ENOMEM}}) {
    const WithFault fault({.call = call, .nth = 1, .error_number = number});
    const auto file = MappedFile::Open(folder / "a");
    ASSERT_FALSE(file.ok());
    EXPECT_EQ(file.error().code, ErrorCode::kIo);
    EXPECT_FALSE(file.error().advice.empty());
  }
  const auto file = MappedFile::Open(folder / "a").value();
  const WithFault fault({.call = Call::kStat, .nth = 1, .error_number = EIO});
  EXPECT_EQ(file->CheckUnchanged().error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace checkpoint
