#include "server/base/log_writer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/logging.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

// A pipe as the log, with a reader that reads when the test says so.
class LogWriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    signal(SIGPIPE, SIG_IGN);
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    reader_ = ends[0];
    writer_ = ends[1];
    pipe_bytes_ = fcntl(writer_, F_SETPIPE_SZ, 4096);
    ASSERT_GT(pipe_bytes_, 0);
  }
  void TearDown() override {
    if (reader_ >= 0) close(reader_);
    close(writer_);
  }
  std::unique_ptr<LogWriter> Make(const LogRoom& room) {
    return std::make_unique<LogWriter>(
        writer_, [](int64_t dropped) { return absl::StrCat(dropped, " dropped\n"); }, room);
  }
  // From now on the writer stands, until Lines() reads: the first line is this one.
  void FillPipe() {
    const std::string line = std::string(static_cast<size_t>(pipe_bytes_) - 1, '#') + "\n";
    ASSERT_EQ(write(writer_, line.data(), line.size()), pipe_bytes_);
  }
  // Reads until `count` lines are there.
  std::vector<std::string> Lines(size_t count) {
    std::string text;
    while (static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) < count) {
      char bytes[512];
      const ssize_t got = read(reader_, bytes, sizeof bytes);
      if (got <= 0) break;
      text.append(bytes, static_cast<size_t>(got));
    }
    return absl::StrSplit(text, '\n', absl::SkipEmpty());
  }

  int reader_ = -1, writer_ = -1, pipe_bytes_ = 0;
};

std::string LineOf(int number) {
  return absl::StrCat(number, std::string(100, '.'), "\n");
}

TEST_F(LogWriterTest, LinesOfAllThreadsComeOutWholeAndInTheirOrder) {
  const auto log = Make({});
  constexpr int kThreads = 4, kLines = 200;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&log, thread] {
      for (int line = 0; line < kLines; ++line) log->Append(absl::StrCat(thread, " ", line, "\n"), false);
    });
  }
  const std::vector<std::string> lines = Lines(kThreads * kLines);
  for (std::thread& thread : threads) thread.join();
  std::vector<int> next(kThreads, 0);
  for (const std::string& line : lines) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    ASSERT_EQ(words.size(), 2) << line;
    EXPECT_EQ(words[1], absl::StrCat(next[std::stoi(words[0])]++));
  }
  EXPECT_THAT(next, ElementsAre(kLines, kLines, kLines, kLines));
  EXPECT_EQ(log->dropped(), 0);
}

TEST_F(LogWriterTest, NobodyWaitsForAReaderThatStandsStillAndTheLogSaysWhatIsMissingWhere) {
  FillPipe();
  const auto log = Make({.bytes = 10'000, .reserve_for_errors = 0});
  constexpr int kLines = 1000;
  for (int i = 0; i < kLines; ++i) log->Append(LineOf(i), false);
  const int64_t dropped = log->dropped();
  const int64_t kept = kLines - dropped;
  EXPECT_GE(kept, 10'000 / 200);
  EXPECT_LE(kept, 10'000 / 100);
  const std::vector<std::string> lines = Lines(1 + kept + 1);
  ASSERT_EQ(lines.size(), 1 + kept + 1);
  for (int i = 0; i < kept; ++i) EXPECT_THAT(lines[1 + i], StartsWith(absl::StrCat(i, ".")));
  EXPECT_EQ(lines.back(), absl::StrCat(dropped, " dropped"));
  log->Append("on\n", false);
  EXPECT_THAT(Lines(1), ElementsAre("on"));
  EXPECT_EQ(log->dropped(), dropped);
}

TEST_F(LogWriterTest, ErrorsHaveAReserve) {
  FillPipe();
  const auto log = Make({.bytes = 10'000, .reserve_for_errors = 1'000});
  for (int i = 0; i < 1000; ++i) log->Append(LineOf(i), false);
  const int64_t dropped = log->dropped();
  log->Append("an error\n", true);
  EXPECT_EQ(log->dropped(), dropped);
  log->Append(LineOf(1000), false);
  EXPECT_EQ(log->dropped(), dropped + 1);
  const std::vector<std::string> lines = Lines(1 + 1000 - dropped + 3);
  EXPECT_EQ(lines[lines.size() - 3], absl::StrCat(dropped, " dropped")) << "before what came behind them";
  EXPECT_EQ(lines[lines.size() - 2], "an error");
  EXPECT_EQ(lines.back(), "1 dropped");
}

TEST_F(LogWriterTest, ErrorsWithoutEndAreBoundedToo) {
  FillPipe();
  const auto log = Make({.bytes = 1'000, .reserve_for_errors = 1'000});
  for (int i = 0; i < 1000; ++i) log->Append(LineOf(i), true);
  EXPECT_GE(log->dropped(), 1000 - 20);
}

TEST_F(LogWriterTest, FlushWaitsForWhatCameBeforeAndNotForever) {
  const auto log = Make({});
  log->Append("a line\n", false);
  EXPECT_TRUE(log->Flush(absl::InfiniteDuration()));
  EXPECT_THAT(Lines(1), ElementsAre("a line"));
  FillPipe();
  log->Append("another\n", false);
  EXPECT_FALSE(log->Flush(absl::Milliseconds(1)));
  EXPECT_EQ(Lines(2).back(), "another");
  EXPECT_TRUE(log->Flush(absl::InfiniteDuration()));
}

TEST_F(LogWriterTest, ALineLongerThanThePipeComesWhole) {
  const auto log = Make({});
  const std::string line(static_cast<size_t>(pipe_bytes_) * 3, 'x');
  log->Append(line + "\n", false);
  EXPECT_THAT(Lines(1), ElementsAre(line));
}

TEST_F(LogWriterTest, AReaderThatIsGoneCostsLinesAndNothingElse) {
  const auto log = Make({});
  close(reader_);
  reader_ = -1;
  log->Append("for nobody\n", false);
  EXPECT_TRUE(log->Flush(absl::InfiniteDuration()));
  EXPECT_EQ(log->dropped(), 1);
}

TEST_F(LogWriterTest, ItEndsThoughTheReaderStandsStill) {
  FillPipe();
  auto log = Make({});
  log->Append("never read\n", false);
  log.reset();
  EXPECT_EQ(Lines(1).size(), 1);
}

// What a process waits for when it exits, or is about to end itself.
TEST_F(LogWriterTest, TheLastFlushOfAProcessIsBoundedThoughTheReaderStandsStill) {
  EXPECT_LE(kLogFlushTime, absl::Seconds(1));
  FillPipe();
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);  // it ends by this where the flush goes on for ever
    dup2(writer_, STDERR_FILENO);
    InitLogging("test", LogLevel::kInfo);
    LogInfo("test", "never read");
    FlushLog();
    _exit(DroppedLogLines() == 0 ? 7 : 8);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 7) << "the line waits still, and nobody took it";
  EXPECT_EQ(Lines(1).size(), 1);
}

TEST_F(LogWriterTest, TheDescriptorKeepsItsFlagsAndOneThatDoesNotBlockLosesNothing) {
  const int before = fcntl(writer_, F_GETFL);
  auto log = Make({});
  log->Append("a\n", false);
  ASSERT_TRUE(log->Flush(absl::InfiniteDuration()));
  EXPECT_EQ(fcntl(writer_, F_GETFL), before);
  ASSERT_EQ(fcntl(writer_, F_SETFL, before | O_NONBLOCK), 0);  // as another process may have made it
  for (int i = 0; i < 200; ++i) log->Append(LineOf(i), false);
  EXPECT_EQ(Lines(201).size(), 201);
  EXPECT_EQ(log->dropped(), 0);
}

}  // namespace
}  // namespace runahead
