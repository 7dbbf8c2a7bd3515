// The system gives no more threads while a cluster serves (tests/testing/refused_threads.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/integration/local_cluster.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

std::string RefusedFile() {
  return absl::StrCat(::testing::TempDir(), "/refused-threads-", getpid());
}

void Refuse(char whom) {
  std::fstream file(RefusedFile(), std::ios::in | std::ios::out | std::ios::binary);
  if (!file) file.open(RefusedFile(), std::ios::out | std::ios::binary);
  file.put(whom);
  ASSERT_TRUE(file.flush().good());
}

std::vector<std::string> Preloaded() {
  Refuse('n');
  return {absl::StrCat("LD_PRELOAD=", RUNAHEAD_REFUSED_THREADS_LIBRARY),
          absl::StrCat("RUNAHEAD_REFUSED_THREADS=", RefusedFile())};
}

class RefusedThreadsTest : public ::testing::Test {
 protected:
  ~RefusedThreadsTest() override { std::remove(RefusedFile().c_str()); }

  static v1::GenerateRequest Request() {
    v1::GenerateRequest request;
    for (int id = 10; id < 50; ++id) request.mutable_token_ids()->add_ids(id);
    request.mutable_stop()->set_max_tokens(8);
    request.mutable_stop()->set_ignore_eos(true);
    return request;
  }

  LocalCluster cluster_{WriteSynthetic(SmallModel(), "refused_threads"),
                        {"--prefill", "1", "--decode", "1", "--threads", "1"},
                        Preloaded()};
};

// With another router a worker begins anew, with threads of its own for that.
TEST_F(RefusedThreadsTest, AWorkerWithoutThreadsForAnotherRouterWaitsForThem) {
  const std::vector<int32_t> expected = cluster_.GenerateEventually(Request()).ids;
  const std::map<std::string, pid_t> before = cluster_.pids();
  Refuse('w');
  kill(before.at("router"), SIGKILL);
  ASSERT_TRUE(Eventually([this] { return cluster_.Log().find("no more threads") != std::string::npos; }));
  Refuse('n');
  EXPECT_EQ(cluster_.GenerateEventually(Request()).ids, expected);
  std::map<std::string, pid_t> after = cluster_.pids();
  EXPECT_NE(after.at("router"), before.at("router"));
  after["router"] = before.at("router");
  EXPECT_EQ(after, before);
  EXPECT_THAT(cluster_.Log(), HasSubstr("the next epoch cannot begin yet: RESOURCE_EXHAUSTED"));
}

}  // namespace
}  // namespace runahead
