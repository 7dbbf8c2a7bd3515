// A prompt of 100,000 tokens on a slow worker: a layer of it takes far longer than a hung worker is given at least, and
// is reckoned by a start that measured a short one. It is never suspected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <stop_token>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "tests/integration/faults_fixture.h"
#include "tests/testing/model_fixture.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kPromptTokens = 100'000;

// A process that runs for a third of the time, as beside two others on its core, until this is destroyed.
class SlowProcess {
 public:
  explicit SlowProcess(pid_t pid)
      : thread_([pid](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            kill(pid, SIGSTOP);
            absl::SleepFor(absl::Milliseconds(100));
            kill(pid, SIGCONT);
            absl::SleepFor(absl::Milliseconds(50));
          }
        }) {}

 private:
  std::jthread thread_;
};

TEST(LongPrompt, OfASlowWorkerIsNotTakenForAHangingOne) {
  // Attention is nearly all of the first layer's time; the last one attends with one row.
  const std::string model = WriteSynthetic(
      {.layers = 2, .hidden = 32, .heads = 2, .kv_heads = 1, .ffn = 64, .context_length = 131'072}, "long_prompt");
  LocalCluster cluster(model, {"--prefill", "1", "--decode", "1", "--threads", "1", "--dtype", "f32"});
  auto slow = std::make_unique<SlowProcess>(cluster.pid("prefill-0"));
  Running running(cluster, Uncached(RequestOf(SyntheticIds(kPromptTokens, 1), 2)), absl::Minutes(4));
  const Answer& answer = running.answer();
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.ids.size(), 2u);
  EXPECT_EQ(answer.finished.failovers(), 0);
  EXPECT_THAT(cluster.Log(), Not(HasSubstr("suspected")));
  // Else the machine is too fast for this prompt to say anything.
  slow.reset();
  const std::string computed = "runahead_prefill_compute_seconds_sum{position=\"0\"}";
  // The worker counts a job once it has ended: the answer may be here before that.
  EXPECT_TRUE(Eventually([&] { return cluster.Metric("prefill-0", computed) > 6; }))
      << cluster.Metric("prefill-0", computed) << " s";
}

}  // namespace
}  // namespace runahead
