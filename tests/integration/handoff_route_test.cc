// Hand-off between real processes: over links, and where the decode worker computes a part of the prompt itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "tests/integration/faults_fixture.h"
#include "tests/integration/serving_process.h"
#include "tests/testing/model_fixture.h"

namespace runahead {
namespace {

using ::testing::ContainsRegex;
using testing::ServingProcess;

class HandoffRouteTest : public ::testing::Test {
 protected:
  const std::string model_ = WriteSynthetic(SyntheticModel(), "handoff_route");
  LocalCluster links_{model_, {"--prefill", "2", "--dtype", "f32", "--threads", "1"}};
};

// The same chain, whose decode worker takes all slices over links, or its own by a copy.
TEST_F(HandoffRouteTest, LinksBringTheKvThatACopyDoes) {
  const auto both = [this](const std::string& name) {
    return ServingProcess({RUNAHEAD_WORKER, "--role", "both", "--name", name, "--threads", "1", "--dtype", "f32",
                           "--kv-memory", "64MiB", "--model", model_});
  };
  const ServingProcess first = both("both-0"), second = both("both-1");
  const ServingProcess router({RUNAHEAD_ROUTER, "--model", model_,
                               absl::StrCat("--workers=role=both,address=", first.address),
                               absl::StrCat("--workers=role=both,address=", second.address)});
  ASSERT_FALSE(router.address.empty()) << router.process.err();
  // What is known is not handed off.
  const v1::GenerateRequest request = Uncached(RequestOf(SyntheticIds(900, 1), 20));
  const Answer by_links = links_.Generate(request);
  ASSERT_TRUE(by_links.status.ok()) << by_links.status.error_message();
  EXPECT_EQ(by_links.started.plan().workers_size(), 2);
  EXPECT_EQ(by_links.ids.size(), 20u);
  const auto stub = OwnStub(router.address);
  Answer by_copy;
  EXPECT_TRUE(Eventually([&] {
    by_copy = GenerateOver(*stub, request);
    return by_copy.status.ok() && by_copy.started.plan().workers_size() == 2;
  })) << by_copy.status.error_message();
  EXPECT_EQ(by_copy.ids, by_links.ids);
  EXPECT_THAT(links_.Log(), ContainsRegex("decode-0 \\[link\\] connected"));
  links_.ExpectAllFree();
}

TEST_F(HandoffRouteTest, ADecodeWorkerThatComesBackIsReachedAgain) {
  const v1::GenerateRequest request = RequestOf(SyntheticIds(300, 2), 10);
  const Answer before = links_.Generate(Uncached(request));
  ASSERT_TRUE(before.status.ok()) << before.status.error_message();
  for (int life = 0; life < 2; ++life) {
    // Its first prompt is handed off, and the same one is known then.
    for (const bool known : {false, true}) {
      const Answer answer = links_.GenerateEventually(request);
      EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
      EXPECT_EQ(answer.ids, before.ids);
      EXPECT_EQ(answer.finished.usage().cached_prompt_tokens(), known ? 299 : 0);
    }
    if (life == 0) kill(links_.pid("decode-0"), SIGKILL);
  }
  links_.ExpectAllFree();
}

}  // namespace
}  // namespace runahead
