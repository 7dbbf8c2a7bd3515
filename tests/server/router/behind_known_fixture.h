// A router in front of fake decode workers that lend KV of what ended there to chains, and the turns of a conversation.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/server/router/faults_fixture.h"

namespace runahead::testing {

inline constexpr int kFirst = 100, kFirstAnswer = 5, kLater = 60;
inline constexpr int kHas = kFirst + kFirstAnswer - 1;  // of the answer's last token no KV was computed
inline constexpr int kNext = kFirst + kFirstAnswer + kLater;

class BehindKnownFixture : public FaultsFixture {
 protected:
  void StartLending(RouterSetup setup = {.decode = 2}, bool computes_rows = false, int window = 0) {
    setup.able = [computes_rows, window](v1::Capabilities& able) {
      able.set_window_layers(window > 0 ? 1 : 0);
      able.set_window(window);
      able.set_lends_beginnings(true);
      able.set_keeps_beginnings(computes_rows);
    };
    Start(setup);
    AwaitReady(setup.prefill, setup.decode);
  }
  // A first turn; the next one, of which a worker has the beginning.
  v1::GenerateRequest FirstTurn(int max_tokens = kFirstAnswer) {
    const v1::GenerateRequest first = Ids(kFirst, kFirstAnswer);
    const Got got = Generate(first);
    ExpectWhole(got);
    has_ = got.started().plan().decode_worker() == "decode-0" ? 0 : 1;
    for (auto& worker : prefill_) worker->AwaitStarts(1);
    v1::GenerateRequest next = first;
    for (const int32_t id : got.ids()) next.mutable_token_ids()->add_ids(id);
    for (int i = 0; i < kLater; ++i) next.mutable_token_ids()->add_ids(40 + i);
    next.mutable_stop()->set_max_tokens(max_tokens);
    return next;
  }
  // What tests hold, and let go.
  void HoldDecode(int64_t tokens) {
    for (auto& worker : decode_) worker->Change([tokens](FakeBehaviour& b) { b.decode_until = tokens; });
  }
  void LetDecode() { HoldDecode(1 << 30); }
  // The job of the chain that begins behind `known` tokens, on each worker that has a part of it; there is one.
  void ExpectCancelled(int known) {
    for (auto& worker : prefill_) {
      for (const v1::StartJob& start : worker->AwaitStarts(0)) {
        if (start.bounds(0) != known) continue;
        worker->AwaitCancel(start.job());
        worker->SendDone(start.job(), absl::CancelledError("as asked"), v1::JOB_CAUSE_ROUTER);
      }
    }
  }
  FakeWorker& Has() { return *decode_[has_]; }
  FakeWorker& Other() { return *decode_[1 - has_]; }
  double Asked(const char* result) {
    return Metric(absl::StrCat("runahead_continuations_total{result=\"", result, "\"}"));
  }
  static void ExpectWhole(const Got& got) {
    ASSERT_TRUE(got.status.ok()) << got.status;
    EXPECT_EQ(got.started().plan().schedule(), "kvr");
    EXPECT_EQ(got.started().plan().known_tokens(), 0);
  }
  static void ExpectBehind(const Got& got) {
    ASSERT_TRUE(got.status.ok()) << got.status;
    EXPECT_EQ(got.started().plan().schedule(), "kvr");
    EXPECT_EQ(got.started().plan().known_tokens(), kHas);
    EXPECT_EQ(got.finished().usage().cached_prompt_tokens(), kHas);
    int64_t parts = 0;
    for (const int32_t part : got.started().plan().parts()) parts += part;
    EXPECT_EQ(parts, kNext - kHas);
  }

  size_t has_ = 0;
};

}  // namespace runahead::testing
