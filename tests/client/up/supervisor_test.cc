#include "client/up/supervisor.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/socket_address.h"
#include "tests/client/up/healthy.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Healthy;

ChildSpec Fake(const std::string& name, const std::string& behaviour = "serve") {
  return {.name = name,
          .binary = RUNAHEAD_FAKE_CHILD,
          .args = {absl::StrCat("--name=", name), absl::StrCat("--behaviour=", behaviour)}};
}

SupervisorOptions AtOnce() {
  SupervisorOptions options;
  options.restarts.pause = absl::ZeroDuration();
  return options;
}

// Whether the system would give the address to a connection that asks for any port.
bool BindsAlone(const std::string& address) {
  const SocketAddress at = *NumericSocketAddress(*ParseHostPort(address));
  const int fd = socket(at.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool bound = bind(fd, at.get(), at.length) == 0;
  close(fd);
  return bound;
}

TEST(Supervisor, KnowsWhereItsChildrenServe) {
  Supervisor supervisor(AtOnce());
  ASSERT_TRUE(supervisor.Start({Fake("a"), Fake("b")}).ok());
  EXPECT_FALSE(supervisor.AllServing());
  ASSERT_TRUE(supervisor.RunUntil([&] { return supervisor.AllServing(); }).ok());
  const auto children = supervisor.children();
  ASSERT_EQ(children.size(), 2u);
  EXPECT_EQ(children[0].name, "a");
  EXPECT_NE(children[0].address.address, children[1].address.address);
  for (const auto& child : children) {
    EXPECT_TRUE(Healthy(child.address.address).ok());
    EXPECT_THAT(child.address.metrics, HasSubstr("127.0.0.1:"));
  }
  supervisor.Stop();
  for (const auto& child : children) EXPECT_NE(kill(child.pid, 0), 0) << child.name << " still runs";
}

TEST(Supervisor, StartsTheDeadAgainOnItsOldPorts) {
  Supervisor supervisor(AtOnce());
  ASSERT_TRUE(supervisor.Start({Fake("a"), Fake("b")}).ok());
  ASSERT_TRUE(supervisor.RunUntil([&] { return supervisor.AllServing(); }).ok());
  const auto before = supervisor.children();
  kill(before[1].pid, SIGKILL);
  const auto back = [&] { return supervisor.AllServing() && supervisor.children()[1].pid != before[1].pid; };
  ASSERT_TRUE(supervisor.RunUntil(back).ok());
  const auto after = supervisor.children();
  EXPECT_EQ(after[0].pid, before[0].pid) << "the other one goes on";
  EXPECT_EQ(after[1].address.address, before[1].address.address);
  EXPECT_EQ(after[1].address.metrics, before[1].address.metrics);
  EXPECT_TRUE(Healthy(after[1].address.address).ok());
  supervisor.Stop();
}

// Was: until the supervisor heard of the death the port was free, and a connection that was given it kept it for a
// minute.
TEST(Supervisor, APortOfTheDeadIsNobodyElsesFromTheFirstMomentOn) {
  Supervisor supervisor(AtOnce());
  ASSERT_TRUE(supervisor.Start({Fake("a")}).ok());
  ASSERT_TRUE(supervisor.RunUntil([&] { return supervisor.AllServing(); }).ok());
  const auto child = supervisor.children()[0];
  kill(child.pid, SIGKILL);
  siginfo_t ended;
  ASSERT_EQ(waitid(P_PID, child.pid, &ended, WEXITED | WNOWAIT), 0);
  for (const std::string& address : {child.address.address, child.address.metrics}) {
    EXPECT_FALSE(BindsAlone(address)) << address;
  }
  supervisor.Stop();
}

TEST(Supervisor, GivesUpOnAChildThatDiesFiveTimesBeforeTheOthersAreOfUse) {
  std::vector<std::string> said;
  SupervisorOptions options = AtOnce();
  options.say = [&](const std::string& line) { said.push_back(line); };
  Supervisor supervisor(options);
  ASSERT_TRUE(supervisor.Start({Fake("good"), Fake("bad", "serve-exit")}).ok());
  const absl::Status status = supervisor.RunUntil([] { return false; });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("bad ended with exit code 4; that was death number 5 in a row"));
  int again = 0;
  for (const std::string& line : said) again += line.find("bad serves again") != std::string::npos;
  EXPECT_EQ(again, 4);
  supervisor.Stop();
}

TEST(Supervisor, GoesOnWithoutOneThatDiesAgainAndAgain) {
  std::vector<std::string> said;
  SupervisorOptions options = AtOnce();
  options.say = [&](const std::string& line) { said.push_back(line); };
  Supervisor supervisor(options);
  ASSERT_TRUE(supervisor.Start({Fake("good"), Fake("bad", "serve-exit")}).ok());
  supervisor.GoOnDegraded();
  const auto seven_times = [&] {
    return std::any_of(said.begin(), said.end(), [](const std::string& line) {
      return line.find(
                 "bad ended with exit code 4; that was death number 7 in a row; the cluster goes on degraded, with "
                 "1 of 2 processes; it is started again on ") == 0;
    });
  };
  const absl::Status status = supervisor.RunUntil(seven_times);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(supervisor.children()[0].serving);
  EXPECT_TRUE(Healthy(supervisor.children()[0].address.address).ok());
  supervisor.Stop();
}

TEST(Supervisor, GivesUpOnAVitalChildThatDiesFiveTimes) {
  Supervisor supervisor(AtOnce());
  ChildSpec router = Fake("router", "serve-exit");
  router.vital = true;
  ASSERT_TRUE(supervisor.Start({Fake("good"), router}).ok());
  supervisor.GoOnDegraded();
  const absl::Status status = supervisor.RunUntil([] { return false; });
  EXPECT_THAT(status.message(), HasSubstr("router ended with exit code 4; that was death number 5 in a row"));
  supervisor.Stop();
}

// What cannot be run for a while, as its file is being replaced, is tried again.
TEST(Supervisor, ABinaryThatIsAwayForAMomentIsTriedAgain) {
  const std::string binary = absl::StrCat(::testing::TempDir(), "supervisor_test_child.", getpid());
  std::filesystem::copy_file(RUNAHEAD_FAKE_CHILD, binary);
  std::vector<std::string> said;
  SupervisorOptions options = AtOnce();
  options.say = [&](const std::string& line) { said.push_back(line); };
  Supervisor supervisor(options);
  ChildSpec child = Fake("a");
  child.binary = binary;
  ASSERT_TRUE(supervisor.Start({child}).ok());
  ASSERT_TRUE(supervisor.RunUntil([&] { return supervisor.AllServing(); }).ok());
  supervisor.GoOnDegraded();
  std::filesystem::rename(binary, binary + ".away");
  kill(supervisor.children()[0].pid, SIGKILL);
  const auto tried = [&] { return !said.empty() && said.back().find("a: cannot run " + binary) == 0; };
  ASSERT_TRUE(supervisor.RunUntil(tried).ok());
  std::filesystem::rename(binary + ".away", binary);
  EXPECT_TRUE(supervisor.RunUntil([&] { return supervisor.AllServing(); }).ok());
  supervisor.Stop();
  std::filesystem::remove(binary);
}

TEST(Supervisor, GivesUpAtOnceOnAChildThatNeverServed) {
  Supervisor supervisor(AtOnce());
  ASSERT_TRUE(supervisor.Start({Fake("good"), Fake("bad", "exit")}).ok());
  const absl::Status status = supervisor.RunUntil([] { return false; });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "bad ended with exit code 3 before it served; its messages are above");
  supervisor.Stop();
}

TEST(Supervisor, KillsWhatWritesNonsense) {
  for (const auto& [behaviour, complaint] :
       {std::pair("nonsense", "ready line 'hello' is no JSON object"), std::pair("close", "closed its ready_fd")}) {
    Supervisor supervisor(AtOnce());
    ASSERT_TRUE(supervisor.Start({Fake("bad", behaviour)}).ok());
    const absl::Status status = supervisor.RunUntil([] { return false; });
    EXPECT_THAT(status.message(), AllOf(HasSubstr("bad was ended by signal 9"), HasSubstr(complaint)));
  }
}

TEST(Supervisor, NamesTheBinaryThatCannotBeRun) {
  Supervisor supervisor(AtOnce());
  const absl::Status status = supervisor.Start({{.name = "a", .binary = "/no/such/binary", .args = {}}});
  EXPECT_THAT(status.message(), AllOf(HasSubstr("a: cannot run /no/such/binary"), HasSubstr("No such file")));
  supervisor.Stop();
}

TEST(Supervisor, ReturnsOnAStopSignal) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Supervisor supervisor(AtOnce());
    ASSERT_TRUE(supervisor.Start({Fake("a")}).ok());
    ASSERT_TRUE(supervisor.RunUntil([&] { return supervisor.AllServing(); }).ok());
    kill(getpid(), signal);
    EXPECT_EQ(supervisor.RunUntil([] { return false; }).code(), absl::StatusCode::kCancelled);
    supervisor.Stop();
    EXPECT_EQ(supervisor.children()[0].pid, -1);
  }
}

TEST(Supervisor, ASignalOfTheLogThatComesEarlyEndsNoChild) {
  Supervisor supervisor(AtOnce());
  ASSERT_TRUE(supervisor.Start({Fake("a", "early")}).ok());
  const absl::Status status = supervisor.RunUntil([&] { return supervisor.AllServing(); });
  EXPECT_TRUE(status.ok()) << status;
  supervisor.Stop();
}

TEST(Supervisor, StopsTheLastGroupFirst) {
  const std::string log = absl::StrCat(::testing::TempDir(), "supervisor_test.", getpid());
  setenv("FAKE_CHILD_LOG", log.c_str(), 1);
  Supervisor supervisor(AtOnce());
  ASSERT_TRUE(supervisor.Start({Fake("worker")}).ok());
  ASSERT_TRUE(supervisor.Start({Fake("router")}).ok());
  ASSERT_TRUE(supervisor.RunUntil([&] { return supervisor.AllServing(); }).ok());
  supervisor.Stop();
  std::stringstream text;
  text << std::ifstream(log).rdbuf();
  EXPECT_EQ(text.str(), "router stopped\nworker stopped\n");
  unsetenv("FAKE_CHILD_LOG");
  unlink(log.c_str());
}

TEST(Supervisor, KillsWhatDoesNotStop) {
  std::string said;
  SupervisorOptions options = AtOnce();
  options.stop_timeout = absl::Milliseconds(1);
  options.say = [&](const std::string& line) { said = line; };
  Supervisor supervisor(options);
  ASSERT_TRUE(supervisor.Start({Fake("a", "deaf")}).ok());
  ASSERT_TRUE(supervisor.RunUntil([&] { return supervisor.AllServing(); }).ok());
  supervisor.Stop();
  EXPECT_EQ(said, "a did not stop in time and is killed");
  EXPECT_EQ(supervisor.children()[0].pid, -1);
}

TEST(Supervisor, KillsWhatIsLeftWhenDestroyed) {
  pid_t pid = -1;
  {
    Supervisor supervisor(AtOnce());
    ASSERT_TRUE(supervisor.Start({Fake("a", "deaf")}).ok());
    pid = supervisor.children()[0].pid;
    EXPECT_EQ(kill(pid, 0), 0);
  }
  EXPECT_NE(kill(pid, 0), 0);
}

}  // namespace
}  // namespace runahead
