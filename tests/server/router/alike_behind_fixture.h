// Prompts that begin alike, and come while one of them is computed, before decode workers that lend KV to chains.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include "absl/time/clock.h"
#include "tests/server/router/behind_known_fixture.h"
#include "tests/testing/fake_clock.h"

namespace runahead::testing {

inline constexpr int kAlikePrompt = 200, kAlikeAnswer = 5, kAlikeBehind = kAlikePrompt - 1;

// By a clock that stands still, so that no wait ends by itself, however long a loaded machine takes.
class AlikeBehindFixture : public BehindKnownFixture {
 protected:
  // `setup` with that clock.
  RouterSetup OnClock(RouterSetup setup) {
    setup.clock = &clock_;
    setup.stall_timeout = absl::Hours(24);
    return setup;
  }
  // No times are known, nor learned: half of a prompt is worth waiting for.
  void StartHolding(const RouterSetup& setup = {.decode = 2}, int window = 0) {
    StartLending(OnClock(setup), /*computes_rows=*/false, window);
    HoldAll();
  }
  void HoldAll() {
    for (auto& worker : prefill_) worker->Change([](FakeBehaviour& b) { b.prefill_takes = absl::ZeroDuration(); });
    HoldPrefill(false, false);
  }
  void LetGoOn() {
    for (auto& worker : prefill_) worker->LetJobsEnd();
  }
  v1::GenerateRequest Prompt(int max_tokens = kAlikeAnswer) { return Ids(kAlikePrompt, max_tokens); }
  // It is computed now, and its chain is held.
  void StartFirst(Call& first) {
    const v1::GenerateResponse started = *first.Read();
    ASSERT_TRUE(started.has_started());
    has_ = started.started().plan().decode_worker() == "decode-1" ? 1 : 0;
  }
  ::testing::AssertionResult WaitsFor(int requests) const {
    return MetricBecomes("runahead_beginnings_awaited_total", requests);
  }
  double Awaited() { return Metric("runahead_beginnings_awaited_total"); }
  static void ExpectTokens(const Got& got, int tokens = kAlikeAnswer) {
    ASSERT_TRUE(got.status.ok()) << got.status;
    std::vector<int32_t> ids(tokens);
    std::iota(ids.begin(), ids.end(), 100);
    EXPECT_EQ(got.ids(), ids);
  }
  static void ExpectBehindAllButLast(const Got& got) {
    const v1::Plan& plan = got.started().plan();
    EXPECT_EQ(plan.schedule(), "kvr");
    EXPECT_EQ(std::accumulate(plan.parts().begin(), plan.parts().end(), 0), 1);
    EXPECT_EQ(plan.known_tokens(), kAlikeBehind);
    EXPECT_EQ(got.finished().usage().cached_prompt_tokens(), kAlikeBehind);
  }
  // Prompts that were computed from their first token, of this many chains or more that the line's head is in.
  int64_t Whole(size_t chains) {
    const std::vector<v1::StartJob> starts = prefill_[0]->AwaitStarts(chains);
    return std::count_if(starts.begin(), starts.end(), [](const v1::StartJob& start) { return start.bounds(0) == 0; });
  }
  static void ExpectStarts(Call& call) {
    const std::optional<v1::GenerateResponse> response = call.Read();
    ASSERT_TRUE(response.has_value() && response->has_started());
  }
  void ExpectNoLeases() {
    for (auto& worker : decode_) worker->AwaitLeases(0);
  }

  // The queue has the real clock: no deadline of calls has passed by that one.
  FakeClock clock_{absl::Now() + absl::Hours(24)};
};

}  // namespace runahead::testing
