// The engine over static windows: what a sequence says is known from its ids, so a wrong row of any step shows.
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/decode/engine_fixture.h"
#include "worker/decode/static_window_loop.h"

namespace runahead {
namespace {

using testing::CollectingSink;
using testing::DecodeEngineTest;
using testing::ExpectedTokens;
using ::testing::HasSubstr;

class StaticWindowEngineTest : public DecodeEngineTest {
 protected:
  void UseWindows(int64_t context, int64_t reserve, int64_t max_batch) {
    engine_ = nullptr;
    DecodeEngineOptions options;
    options.max_batch = max_batch;
    options.make_loop = [this, context, reserve, max_batch](Stream& stream) {
      return StaticWindowLoop::Create(*model_, device_, *store_, stream,
                                      {*MakeStaticWindowSize(context, reserve), max_batch});
    };
    engine_ = *DecodeEngine::Create(device_, model_, *store_, std::move(options), clock_);
  }
};

// Twice as many sequences as there are windows: each window is used again.
TEST_F(StaticWindowEngineTest, SequencesJoinAndLeave) {
  for (const int64_t reserve : {0, 80, 64}) {
    UseWindows(64, reserve, 4);
    std::vector<DecodeSequence> sequences;
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (int i = 0; i < 8; ++i) {
      sequences.push_back(MakeSequence(500 + i, 1 + 7 * i, 12));
      Fill(sequences.back());
      sinks.push_back(Add(sequences.back()));
    }
    for (int i = 0; i < 8; ++i) {
      EXPECT_EQ(sinks[i]->AwaitEnd(), absl::OkStatus()) << i;
      EXPECT_EQ(sinks[i]->ids(), ExpectedTokens(sequences[i])) << i;
    }
    ExpectNothingHeld();
  }
}

// The others' steps are tried again, in halves, when their windows have moved already.
TEST_F(StaticWindowEngineTest, ARowThatMakesItsPassFailEndsAlone) {
  UseWindows(128, 129, 16);
  std::vector<DecodeSequence> sequences;
  for (int i = 0; i < 7; ++i) sequences.push_back(MakeSequence(600 + i, 10 * (i + 1), 12));
  bad_ = {34, 75};  // the third's fifth token, the seventh's sixth
  door_.Shut();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const DecodeSequence& sequence : sequences) {
    Fill(sequence);
    sinks.push_back(Add(sequence));
  }
  door_.Open();
  for (int i = 0; i < 7; ++i) {
    const absl::Status end = sinks[i]->AwaitEnd();
    std::vector<int32_t> expected = ExpectedTokens(sequences[i]);
    if (i == 2 || i == 6) {
      EXPECT_THAT(end.ToString(), HasSubstr("the fake has had enough"));
      expected.resize(i == 2 ? 4 : 5);
    } else {
      EXPECT_EQ(end, absl::OkStatus()) << i;
    }
    EXPECT_EQ(sinks[i]->ids(), expected) << i;
  }
  ExpectNothingHeld();
}

// What it appends goes to its window only: a continuation fills the window as the stream that it goes on did.
TEST_F(StaticWindowEngineTest, AnAnswerGoesOnBehindTheOutputThatItHas) {
  for (const int64_t reserve : {0, 64}) {
    UseWindows(64, reserve, 4);
    for (const size_t known : {1, 9, 18}) {
      DecodeSequence sequence = MakeSequence(800, 30, 20);
      Fill(sequence);
      const std::vector<int32_t> expected = ExpectedTokens(sequence);
      sequence.output_ids.insert(sequence.output_ids.end(), expected.begin(), expected.begin() + known);
      const std::shared_ptr<CollectingSink> sink = Add(sequence);
      EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
      EXPECT_EQ(sink->ids(), std::vector<int32_t>(expected.begin() + known, expected.end())) << known;
    }
    ExpectNothingHeld();
  }
}

// Nothing of it is kept.
TEST_F(StaticWindowEngineTest, WhoseOutputIsAtItsEndWaitsForNoKv) {
  UseWindows(64, 0, 4);
  EXPECT_EQ(Add(MakeSequence(19, 30, 1))->AwaitEnd(), absl::OkStatus());
  ExpectNothingHeld();
}

TEST_F(StaticWindowEngineTest, RefusesWhatOutgrowsTheWindow) {
  UseWindows(32, 0, 4);
  const DecodeSequence fits = MakeSequence(700, 20, 12), longer = MakeSequence(701, 20, 13);
  Fill(fits);
  const auto sink = Add(fits);
  const absl::Status refused = engine_->Add(longer, std::make_shared<CollectingSink>()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(refused.message(), HasSubstr("33 tokens"));
  EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(sink->ids(), ExpectedTokens(fits));
  ExpectNothingHeld();
}

}  // namespace
}  // namespace runahead
