// `runahead up` as a program, with fake children beside it.
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/base/health.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/up/healthy.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/test_process.h"

namespace runahead {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using testing::Healthy;
using ::testing::StartsWith;
using testing::TestProcess;

// A folder with the program and fakes of what it starts.
class UpCommandTest : public ::testing::Test {
 protected:
  UpCommandTest() : folder_(absl::StrCat(::testing::TempDir(), "up_command_test.", getpid())) {
    fs::create_directories(folder_);
    Link(RUNAHEAD_BINARY, "runahead");
    Link(RUNAHEAD_FAKE_CHILD, "runahead-router");
    Link(RUNAHEAD_FAKE_CHILD, "runahead-gateway");
    Link(RUNAHEAD_FAKE_CHILD, "runahead-worker");
  }
  ~UpCommandTest() override { fs::remove_all(folder_); }

  void Link(const std::string& from, const std::string& name) {
    std::error_code error;
    fs::create_hard_link(from, folder_ + "/" + name, error);
    if (error) fs::copy_file(from, folder_ + "/" + name);  // another file system
  }

  std::unique_ptr<TestProcess> Up(std::vector<std::string> more, const std::vector<std::string>& environment = {}) {
    std::vector<std::string> args = {folder_ + "/runahead", "up", "--model", "/dev/null", "--prefill", "2"};
    args.insert(args.end(), more.begin(), more.end());
    return std::make_unique<TestProcess>(args, environment);
  }

  static nlohmann::json Ready(TestProcess& up) {
    EXPECT_TRUE(up.ReadOutUntil("\n")) << up.err();
    return nlohmann::json::parse(up.out(), nullptr, false);
  }

  static size_t Count(const std::string& text, const std::string& what) {
    size_t count = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
    return count;
  }

  // Kills a child whenever it serves again, until `done`. A slow machine may end a row of deaths, for one that served
  // long enough before it was killed, and a port that somebody else has taken adds deaths: neither is counted on here.
  static void KillAgainAndAgain(TestProcess& up, const std::string& name, const std::function<bool()>& done) {
    const std::string again = name + " serves again on ";
    size_t read = 0;  // of what it has said
    const auto said = [&] {
      const size_t at = up.err().find(again, read);
      return at != std::string::npos && up.err().find('\n', at) != std::string::npos;
    };
    while (up.ReadUntil([&] { return done() || said(); }) && !done()) {
      const size_t at = up.err().find(", process ", up.err().find(again, read));
      ASSERT_NE(at, std::string::npos) << up.err();
      kill(std::stoi(up.err().substr(at + 10)), SIGKILL);
      read = up.err().find('\n', at);
    }
  }

  const std::string folder_;
};

TEST_F(UpCommandTest, PrintsOneLineWhenReadyAndStopsOnSigterm) {
  const auto up = Up({"--json"});
  const auto ready = Ready(*up);
  ASSERT_TRUE(ready.is_object()) << up->out();
  EXPECT_EQ(ready.size(), 4u);
  EXPECT_THAT(ready["http"].get<std::string>(), AllOf(StartsWith("http://127.0.0.1:"), EndsWith("/v1")));
  for (const std::string name : {"router", "prefill-0", "prefill-1", "decode-0", "gateway"}) {
    EXPECT_THAT(ready["metrics"][name].get<std::string>(), HasSubstr("127.0.0.1:"));
    EXPECT_EQ(kill(ready["pids"][name], 0), 0) << name;
  }
  EXPECT_TRUE(Healthy(ready["router"]).ok());
  up->Signal(SIGTERM);
  EXPECT_EQ(up->Wait(), 0) << up->err();
  for (const auto& pid : ready["pids"]) EXPECT_NE(kill(pid, 0), 0);
}

TEST_F(UpCommandTest, PrintsATableForPeople) {
  const auto up = Up({});
  ASSERT_TRUE(up->ReadOutUntil("runahead chat --router 127.0.0.1:")) << up->err();
  EXPECT_THAT(up->out(), HasSubstr("prefill-1"));
  ASSERT_TRUE(up->ReadOutUntil("/v1/chat/completions")) << up->out();
  up->Signal(SIGINT);
  EXPECT_EQ(up->Wait(), 0) << up->err();
}

TEST_F(UpCommandTest, StartsADeadChildAgainOnItsOldPort) {
  const auto up = Up({"--json"});
  const auto ready = Ready(*up);
  ASSERT_TRUE(ready.is_object());
  kill(ready["pids"]["router"], SIGKILL);
  ASSERT_TRUE(up->ReadErrUntil(absl::StrCat("router serves again on ", ready["router"].get<std::string>())));
  EXPECT_TRUE(Healthy(ready["router"]).ok());
  up->Signal(SIGTERM);
  EXPECT_EQ(up->Wait(), 0);
}

TEST_F(UpCommandTest, SignalsMoveTheLogLevelOfAllProcesses) {
  const auto up = Up({"--json"});
  const auto ready = Ready(*up);
  ASSERT_TRUE(ready.is_object());
  for (const auto& [signal, level] : {std::pair(SIGUSR1, "debug"), {SIGUSR2, "info"}}) {
    up->Signal(signal);
    for (const char* name : {"up", "router", "prefill-0", "prefill-1", "decode-0", "gateway"}) {
      ASSERT_TRUE(up->ReadErrUntil(absl::StrCat(name, " [log] the log level is ", level, " now"))) << up->err();
    }
  }
  up->Signal(SIGTERM);
  EXPECT_EQ(up->Wait(), 0) << up->err();
}

TEST_F(UpCommandTest, AllProcessesLogAsJsonWhereThatIsAskedFor) {
  const auto up = Up({"--json", "--log-format", "json"});
  ASSERT_TRUE(Ready(*up).is_object());
  up->Signal(SIGUSR1);
  for (const char* name : {"up", "router", "prefill-0", "prefill-1", "decode-0", "gateway"}) {
    ASSERT_TRUE(up->ReadErrUntil(absl::StrCat("\"process\":\"", name, "\",\"component\":\"log\""))) << up->err();
  }
  up->Signal(SIGTERM);
  EXPECT_EQ(up->Wait(), 0) << up->err();
  for (const absl::string_view line : absl::StrSplit(up->err(), '\n', absl::SkipEmpty())) {
    EXPECT_TRUE(nlohmann::json::parse(std::string(line), nullptr, false).is_object()) << line;
  }
}

TEST_F(UpCommandTest, ChildrenEndWithItEvenWhenItIsKilled) {
  const auto up = Up({"--json"});
  const auto ready = Ready(*up);
  ASSERT_TRUE(ready.is_object());
  up->Signal(SIGKILL);
  // The children hold the other end of stderr: it closes when the last of them has ended.
  EXPECT_EQ(up->Wait(), 128 + SIGKILL);
}

// A worker that dies again and again is started later and later; the others go on.
TEST_F(UpCommandTest, OneCrashLoopDoesNotEndTheCluster) {
  const auto up = Up({"--json"});
  const auto ready = Ready(*up);
  ASSERT_TRUE(ready.is_object()) << up->out();
  kill(ready["pids"]["prefill-0"], SIGKILL);
  EXPECT_TRUE(up->ReadErrUntil("the cluster goes on degraded, with 4 of 5 processes")) << up->err();
  KillAgainAndAgain(*up, "prefill-0", [&] { return up->err().find(" in 16s\n") != std::string::npos; });
  // It would have ended by now, with all healthy processes.
  EXPECT_THAT(up->err(), HasSubstr("prefill-0 was ended by signal 9"));
  EXPECT_THAT(up->err(), HasSubstr("death number 5 in a row; the cluster goes on degraded"));
  EXPECT_TRUE(Healthy(ready["router"]).ok()) << up->err();
  for (const std::string name : {"router", "prefill-1", "decode-0"}) {
    EXPECT_EQ(kill(ready["pids"][name], 0), 0) << name << ": " << up->err();
  }
  up->Signal(SIGTERM);
  EXPECT_EQ(up->Wait(), 0) << up->err();
  EXPECT_EQ(Count(up->out(), "\n"), 1u) << "one line for programs, whatever happens: " << up->out();
}

TEST_F(UpCommandTest, ARouterThatGoesOnDyingEndsIt) {
  const auto up = Up({"--json"});
  const auto ready = Ready(*up);
  ASSERT_TRUE(ready.is_object()) << up->out();
  kill(ready["pids"]["router"], SIGKILL);
  KillAgainAndAgain(*up, "router", [] { return false; });
  EXPECT_EQ(up->Wait(), 1) << up->err();
  EXPECT_THAT(up->err(), HasSubstr("router was ended by signal 9"));
  EXPECT_THAT(up->err(), HasSubstr("that was death number 5 in a row"));
}

TEST_F(UpCommandTest, SaysWhichChildDidNotStart) {
  const auto up = Up({"--json"}, {"FAKE_CHILD_decode_0=exit"});
  EXPECT_EQ(up->Wait(), 1);
  EXPECT_EQ(up->out(), "");
  EXPECT_THAT(up->err(), HasSubstr("runahead up: decode-0 ended with exit code 3 before it served"));
}

// Once, and before anything is started: each worker would say it in its log.
TEST_F(UpCommandTest, RefusesInt8WhereNothingIsQuantisedInOneLine) {
  const std::string model = WriteSynthetic(SyntheticModel{}, "up_plain");
  TestProcess up({folder_ + "/runahead", "up", "--model", model, "--dtype", "int8"});
  EXPECT_EQ(up.Wait(), 2);
  EXPECT_EQ(up.err(), absl::StrCat("runahead up: --dtype: int8 multiplies quantised weights, and the matrices of ",
                                   model, " are F32: give auto, f32 or bf16\nRun with --help for all options.\n"));
}

TEST_F(UpCommandTest, SaysWhichBinaryIsMissing) {
  fs::remove(folder_ + "/runahead-router");
  const auto up = Up({});
  EXPECT_EQ(up->Wait(), 1);
  EXPECT_THAT(up->err(), HasSubstr("/runahead-router: No such file"));
}

}  // namespace
}  // namespace runahead
