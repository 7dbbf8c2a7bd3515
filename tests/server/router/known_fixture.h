// A router in front of fake workers that keep the beginnings of their sequences, and the turns of a conversation.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/router/faults_fixture.h"

namespace runahead::testing {

inline constexpr int kFirstPrompt = 64, kAnswer = 5, kMore = 7;
inline constexpr int kKnownOfNext = kFirstPrompt + kAnswer - 1;  // of its last token no KV was computed

class KnownFixture : public FaultsFixture {
 protected:
  void StartKeeping(RouterSetup setup = {.decode = 2}, int window = 0) {
    setup.able = [window](v1::Capabilities& able) {
      able.set_keeps_beginnings(true);
      able.set_window_layers(window > 0 ? 1 : 0);
      able.set_window(window);
    };
    Start(setup);
    AwaitReady(setup.prefill, setup.decode);
  }
  // The next turn of a conversation: what was asked and answered, and some tokens more.
  static v1::GenerateRequest Next(const v1::GenerateRequest& before, const Got& got, int max_tokens = kAnswer) {
    v1::GenerateRequest next = before;
    auto& ids = *next.mutable_token_ids();
    for (const int32_t id : got.ids()) ids.add_ids(id);
    for (int i = 0; i < kMore; ++i) ids.add_ids(40 + i);
    next.mutable_stop()->set_max_tokens(max_tokens);
    return next;
  }
  // A first turn; the next one.
  v1::GenerateRequest FirstTurn(v1::GenerateRequest first, int max_tokens = kAnswer) {
    const Got got = Generate(first);
    EXPECT_TRUE(got.status.ok()) << got.status;
    EXPECT_EQ(got.started().plan().schedule(), "kvr");
    // The tail's token may come before the head hears of its Start.
    for (const std::string& worker : got.started().plan().workers()) {
      prefill_[worker == "prefill-0" ? 0 : 1]->AwaitStarts(1);
    }
    const std::string name = got.started().plan().decode_worker();
    has_ = name == "decode-0" ? 0 : 1;
    return Next(first, got, max_tokens);
  }
  v1::GenerateRequest FirstTurn(int max_tokens = kAnswer) { return FirstTurn(Ids(kFirstPrompt, kAnswer), max_tokens); }
  // From now on what a chain computes for an answer of one token is kept nowhere.
  void LeaveNothing() {
    for (auto& worker : decode_) {
      worker->Change([](FakeBehaviour& b) {
        b.generate_end = grpc::Status(grpc::StatusCode::UNAVAILABLE, "it is about to stop");
      });
    }
  }
  FakeWorker& Has() { return *decode_[has_]; }
  FakeWorker& Other() { return *decode_[1 - has_]; }
  size_t Starts() { return prefill_[0]->AwaitStarts(0).size() + prefill_[1]->AwaitStarts(0).size(); }
  double Continuations(const char* result) {
    return Metric(absl::StrCat("runahead_continuations_total{result=\"", result, "\"}"));
  }
  static std::vector<int32_t> Whole(int tokens = kAnswer) {
    std::vector<int32_t> ids(tokens);
    for (int i = 0; i < tokens; ++i) ids[i] = 100 + i;
    return ids;
  }
  static void ExpectChain(const Got& got) {
    ASSERT_TRUE(got.status.ok()) << got.status;
    EXPECT_EQ(got.started().plan().schedule(), "kvr");
    EXPECT_EQ(got.started().plan().known_tokens(), 0);
    EXPECT_EQ(got.finished().usage().cached_prompt_tokens(), 0);
  }
  static void ExpectContinuation(const Got& got) {
    ASSERT_TRUE(got.status.ok()) << got.status;
    EXPECT_EQ(got.started().plan().schedule(), "continuation");
  }

  size_t has_ = 0;
};

}  // namespace runahead::testing
