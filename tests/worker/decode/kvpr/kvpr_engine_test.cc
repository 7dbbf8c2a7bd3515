// KVPR under the decode engine: sequences that end in the middle of it, in every way, leave nothing behind.
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/worker/decode/fake_form.h"
#include "tests/worker/decode/kvpr/kvpr_engine_fixture.h"

namespace runahead {
namespace {

using testing::CollectingSink;

TEST_F(KvprEngineTest, WhatIsCancelledLeavesNothingAndChangesNobodysTokens) {
  std::vector<std::vector<int32_t>> expected;
  MakeEngine(0, /*kvpr=*/false);
  for (const int64_t prompt : {700, 300}) {
    const auto sink = Add(static_cast<int>(prompt), prompt);
    EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
    expected.push_back(sink->ids());
  }
  ExpectNothingHeld();
  MakeEngine(0);
  SequenceNumber first = 0, second = 0;
  const auto stays = Add(700, 700), goes = Add(1, 900, kManyTokens, &first);
  goes->AwaitTokens(3);
  const auto stays_too = Add(300, 300), goes_too = Add(2, 20, kManyTokens, &second);
  engine_->Cancel(first);
  goes_too->AwaitTokens(5);
  engine_->Cancel(second);
  EXPECT_EQ(goes->AwaitEnd().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(goes_too->AwaitEnd().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(stays->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(stays_too->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(stays->ids(), expected[0]);
  EXPECT_EQ(stays_too->ids(), expected[1]);
  ExpectNothingHeld();
}

// With the split fixed each position is computed as it was in the stream that is gone on with.
TEST_F(KvprEngineTest, AnAnswerGoesOnBehindTheOutputThatItHas) {
  for (const int64_t recomputed : {0, 64}) {
    MakeEngine(recomputed);
    const auto whole = Add(3, 600);
    EXPECT_EQ(whole->AwaitEnd(), absl::OkStatus());
    const std::vector<int32_t> expected = whole->ids();
    ASSERT_EQ(expected.size(), kTokens - 1);
    for (const size_t known : {1, 20, 38}) {
      const auto rest = Add(3, 600, kTokens, nullptr, absl::MakeSpan(expected).first(known));
      EXPECT_EQ(rest->AwaitEnd(), absl::OkStatus());
      EXPECT_EQ(rest->ids(), std::vector<int32_t>(expected.begin() + known, expected.end())) << recomputed;
    }
    ExpectNothingHeld();
  }
}

// A row whose mask is late is computed again: by a step that was planned for the row behind it, too.
TEST_F(KvprEngineTest, AMaskThatIsLateChangesNoTokens) {
  std::shared_ptr<CollectingSink> plain;
  int64_t plain_tokens = 0;
  grammars_ = testing::FakeForms([&](const std::string& text) {
    return std::make_shared<testing::FakeForm>([&, late = text == "late"](int64_t) {
      if (late) plain->AwaitTokens(plain_tokens += 3);
    });
  });
  for (const int64_t recomputed : {0, 64}) {
    MakeEngine(recomputed);
    const auto in_time = Add(0, 300, 10, nullptr, {}, "in time");
    EXPECT_EQ(in_time->AwaitEnd(), absl::OkStatus());
    plain = Add(700, 700, 45), plain_tokens = 0;
    plain->AwaitTokens(1);
    const auto late = Add(0, 300, 10, nullptr, {}, "late");
    EXPECT_EQ(late->AwaitEnd(), absl::OkStatus());
    EXPECT_EQ(late->ids(), in_time->ids()) << recomputed;
    EXPECT_EQ(late->ids().size(), 9);
    EXPECT_EQ(plain->AwaitEnd(), absl::OkStatus());
    const auto alone = Add(700, 700, 45);
    EXPECT_EQ(alone->AwaitEnd(), absl::OkStatus());
    EXPECT_EQ(plain->ids(), alone->ids()) << recomputed;
    ExpectNothingHeld();
  }
}

TEST_F(KvprEngineTest, WhatASequenceTookIsReportedByItsRequest) {
  MakeEngine(64);
  const auto one = Add(1, 300, 4), two = Add(2, 900, 6);
  EXPECT_EQ(one->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(two->AwaitEnd(), absl::OkStatus());
  engine_ = nullptr;
  MutexLock lock(reported_mu_);
  ASSERT_EQ(reported_.size(), 2u);
  EXPECT_EQ(reported_[0].request_id, "request 1");
  EXPECT_EQ(reported_[0].steps, 3) << "the first token is the prefill's";
  EXPECT_EQ(reported_[1].request_id, "request 2");
  EXPECT_EQ(reported_[1].steps, 5);
  EXPECT_NE(reported_[0].lease, reported_[1].lease);
}

TEST_F(KvprEngineTest, TheLoopIsToldThatNothingIsToDo) {
  MakeEngine(0);
  EXPECT_EQ(Add(1, 20, 4)->AwaitEnd(), absl::OkStatus());
  engine_ = nullptr;
  EXPECT_GT(idles_, 0);
}

TEST_F(KvprEngineTest, AnEngineThatEndsInTheMiddleOfStepsGivesAllBack) {
  for (const int64_t recomputed : {0, 64, 1000}) {
    MakeEngine(recomputed);
    const auto one = Add(1, 900, kManyTokens), two = Add(2, 300, kManyTokens), three = Add(3, 600, kManyTokens);
    one->AwaitTokens(2);
    engine_ = nullptr;
    for (const auto& sink : {one, two, three}) EXPECT_EQ(sink->AwaitEnd().code(), absl::StatusCode::kUnavailable);
    ExpectNothingHeld();
  }
}

// One is cancelled in the middle of steps, one ends by itself, and the others end with the engine.
class KvprEngineFormsTest : public KvprEngineTest {
 protected:
  explicit KvprEngineFormsTest(unsigned more_uses = 0) : KvprEngineTest(more_uses) {}

  void CancelOneAndEndTheEngine(int64_t recomputed) {
    MakeEngine(recomputed);
    SequenceNumber cancelled = 0;
    const auto one = Add(1, 900, kManyTokens, &cancelled), two = Add(2, 300, 4), three = Add(3, 900, kManyTokens);
    three->AwaitTokens(3);
    engine_->Cancel(cancelled);
    EXPECT_EQ(one->AwaitEnd().code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(two->AwaitEnd(), absl::OkStatus());
    const size_t so_far = three->ids().size();
    three->AwaitTokens(so_far + 2);
    engine_ = nullptr;
    EXPECT_EQ(three->AwaitEnd().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(resident_, 0);
    ExpectNothingHeld();
  }
};

TEST_F(KvprEngineFormsTest, QuantisedKvLeavesNothingBehind) {
  kv_bits_ = 8;
  CancelOneAndEndTheEngine(128);
}

TEST_F(KvprEngineFormsTest, XThatStaysOnTheDeviceLeavesNothingBehind) {
  x_may_stay_ = true;
  CancelOneAndEndTheEngine(0);
  EXPECT_GT(x_resident_, 0);
}

class KvprEngineWeightsTest : public KvprEngineFormsTest {
 protected:
  KvprEngineWeightsTest() : KvprEngineFormsTest(kUseStreamed) {}
};

TEST_F(KvprEngineWeightsTest, StreamedWeightsLeaveNothingBehind) {
  ASSERT_GT(WeightStream::DeviceBytes(*model_), 0);
  CancelOneAndEndTheEngine(64);
}

// More sequences than a step has room for, of all lengths, some of which are cancelled anywhere.
TEST_F(KvprEngineTest, ManyThatComeAndGoLeaveNothing) {
  MakeEngine(128);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  std::mt19937 random(3);
  for (int i = 0; i < 14; ++i) {
    SequenceNumber number = 0;
    sinks.push_back(Add(i, 1 + static_cast<int64_t>(random() % 900), kTokens, &number));
    if (i % 3 == 1) {
      sinks.back()->AwaitTokens(random() % 10);
      engine_->Cancel(number);
    }
    if (i % 3 == 2) {
      EXPECT_EQ(sinks[i - 2]->AwaitEnd(), absl::OkStatus());
    }
  }
  for (const auto& sink : sinks) {
    const absl::Status end = sink->AwaitEnd();
    EXPECT_TRUE(end.ok() || absl::IsCancelled(end)) << end;
  }
  ExpectNothingHeld();
}

}  // namespace
}  // namespace runahead
