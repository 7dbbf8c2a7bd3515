#include "server/base/host_lookup.h"

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/patience.h"

namespace runahead {
namespace {

using Addresses = std::vector<std::string>;
using ::testing::ElementsAre;
using testing::LongestWait;

// A resolver that waits until it may answer. It lives for as long as somebody asks it.
struct SilentServer {
  std::atomic<int> questions = 0;
  std::promise<void> asked, may_answer;
  std::shared_future<void> answer = may_answer.get_future().share();
};

HostLookup::Resolver ResolverOf(std::shared_ptr<SilentServer> server) {
  return [server](const std::string&) -> absl::StatusOr<Addresses> {
    if (++server->questions == 1) server->asked.set_value();
    server->answer.wait();
    return Addresses{"10.0.0.1"};
  };
}

TEST(HostLookup, EachQuestionIsAskedAnew) {
  int asked = 0;
  HostLookup lookup("collector", [&asked](const std::string& host) -> absl::StatusOr<Addresses> {
    EXPECT_EQ(host, "collector");
    if (++asked == 2) return absl::NotFoundError("gone");
    return Addresses{"10.0.0.1", "::1"};
  });
  EXPECT_THAT(*lookup.Find(LongestWait()), ElementsAre("10.0.0.1", "::1"));
  EXPECT_EQ(lookup.Find(LongestWait()).status(), absl::NotFoundError("gone"));
  EXPECT_TRUE(lookup.Find(LongestWait()).ok());
  EXPECT_EQ(asked, 3);
}

TEST(HostLookup, AServerThatDoesNotAnswerIsWaitedForNoLongerThanThatAndAskedOnce) {
  const auto server = std::make_shared<SilentServer>();
  HostLookup lookup("collector", ResolverOf(server));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(lookup.Find(absl::Milliseconds(1)).status().code(), absl::StatusCode::kDeadlineExceeded);
  }
  server->asked.get_future().wait();
  EXPECT_EQ(server->questions, 1);
  server->may_answer.set_value();
  EXPECT_THAT(*lookup.Find(LongestWait()), ElementsAre("10.0.0.1"));
}

TEST(HostLookup, ACutEndsWhatWaitsAndWhatComes) {
  const auto server = std::make_shared<SilentServer>();
  HostLookup lookup("collector", ResolverOf(server));
  absl::Status ended;
  std::thread waiting([&] { ended = lookup.Find(absl::InfiniteDuration()).status(); });
  server->asked.get_future().wait();
  lookup.Cut();
  waiting.join();
  EXPECT_EQ(ended.code(), absl::StatusCode::kCancelled) << ended;
  EXPECT_EQ(lookup.Find(LongestWait()).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(server->questions, 1);
  server->may_answer.set_value();
}

TEST(HostLookup, AnAnswerMayComeBehindTheEndOfWhoAsked) {
  const auto server = std::make_shared<SilentServer>();
  {
    HostLookup lookup("collector", ResolverOf(server));
    EXPECT_FALSE(lookup.Find(absl::Milliseconds(1)).ok());
  }
  server->may_answer.set_value();
}

TEST(HostLookup, TheSystemTakesAddressesAndNames) {
  EXPECT_THAT(*SystemAddresses("127.0.0.1"), ElementsAre("127.0.0.1"));
  EXPECT_THAT(*SystemAddresses("::1"), ElementsAre("::1"));
  EXPECT_THAT(*SystemAddresses("localhost"), ::testing::Not(::testing::IsEmpty()));
  EXPECT_EQ(SystemAddresses(std::string(300, 'a')).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace runahead
