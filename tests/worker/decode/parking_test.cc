// Sequences whose leases grow, in a store too small for all of them: who waits, who comes back, and what it gives.
#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/await.h"
#include "tests/worker/decode/engine_fixture.h"
#include "worker/decode/engine.h"

namespace runahead {
namespace {

using testing::CollectingSink;
using testing::DecodeEngineTest;
using testing::ExpectedTokens;
using ::testing::HasSubstr;

class Parking : public DecodeEngineTest {
 protected:
  static constexpr int64_t kStepRows = 64;

  Parking() { MakeWorld(8, 16); }
  void MakeWorld(int64_t blocks, int64_t max_batch) {
    MakeStore(blocks);
    MakeEngine(max_batch, kStepRows);
  }

  // One whose lease grows, of which nothing is expected, with the prompt's KV; traced.
  DecodeSequence MakeGrowing(int seed, int64_t prompt, int64_t max_tokens, bool parked_first = false) {
    DecodeSequence sequence = testing::MakeHashSequence(*store_, seed,
                                                        {.prompt_tokens = prompt,
                                                         .total_tokens = prompt + max_tokens,
                                                         .expected_tokens = prompt,
                                                         .parked_first = parked_first});
    sequence.spans = std::make_shared<SpanRecorder>();
    Fill(sequence);
    return sequence;
  }
  // How often it was parked and came back, once it has ended.
  static int64_t TimesParked(const DecodeSequence& sequence) {
    const std::vector<RecordedSpan> spans = sequence.spans->Take().spans;
    return std::count_if(spans.begin(), spans.end(),
                         [](const RecordedSpan& span) { return std::string_view(span.name) == "parked"; });
  }
  // All of them before the first step.
  std::vector<std::shared_ptr<CollectingSink>> AddTogether(const std::vector<DecodeSequence>& sequences) {
    door_.Shut();
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (const DecodeSequence& sequence : sequences) sinks.push_back(Add(sequence));
    door_.Open();
    return sinks;
  }
  using Sink = std::shared_ptr<CollectingSink>;
  // The sinks of two, of which the second is parked; nothing goes on until the door opens.
  std::pair<Sink, Sink> StopWhereTheSecondIsParked(const DecodeSequence& first, const DecodeSequence& second) {
    on_parking_ = [this](const DecodeParking& parking) {
      if (parking.one_more) door_.Shut();
    };
    const std::pair<Sink, Sink> sinks = {Add(first), Add(second)};
    EXPECT_TRUE(testing::Await("a sequence is parked", [&] { return parkings_ > 0; }));
    return sinks;
  }
  void ExpectStreams(const std::vector<DecodeSequence>& sequences,
                     const std::vector<std::shared_ptr<CollectingSink>>& sinks) {
    for (size_t i = 0; i < sequences.size(); ++i) {
      EXPECT_EQ(sinks[i]->AwaitEnd(), absl::OkStatus());
      EXPECT_EQ(sinks[i]->ids(), ExpectedTokens(sequences[i])) << i;
    }
  }
  void ExpectNothingPromised() {
    ExpectNothingHeld();
    EXPECT_EQ(store_->stats().promised_bytes, 0);
    EXPECT_EQ(engine_->parked(), 0);
  }
};

// Greedy and seeded, with penalties, biases and bad words: what draws look at comes back, too.
TEST_F(Parking, GivesTheStreamsOfARunWithout) {
  std::vector<DecodeSequence> sequences;
  for (int i = 0; i < 5; ++i) {
    sequences.push_back(MakeGrowing(i, 40 + 60 * i, 500 - 40 * i));
    SamplingOptions& sampling = sequences.back().sampling;
    if (i % 2 == 1) sampling.temperature = 0.8f, sampling.seed = i, sampling.top_k = 20;
    if (i % 3 == 2) sampling.repetition_penalty = 1.2f, sampling.frequency_penalty = 0.3f;
    if (i > 2) sampling.logit_bias = {{5, 2}, {6, -100}};
    if (i > 1) sequences.back().rules.bad_ids = {{7}, {5, 5}, {8, 9}};
  }
  const auto sinks = AddTogether(sequences);
  ExpectStreams(sequences, sinks);
  EXPECT_GE(parkings_, 2) << "8 blocks, and the five need 15";
  EXPECT_EQ(TimesParked(sequences[0]), 0) << "the oldest";
  int64_t parked = 0;
  for (const DecodeSequence& sequence : sequences) parked += TimesParked(sequence);
  EXPECT_EQ(parked, parkings_) << "each came back";
  ExpectNothingPromised();
  engine_ = nullptr;
  int64_t again = 0;
  for (const DecodeStep& step : steps_) again += step.again_rows;
  EXPECT_GE(again, 100 * parkings_) << "prompts and output";
}

TEST_F(Parking, WhoIsOfLowPriorityGoesFirstHoweverOld) {
  MakeWorld(6, 16);
  const std::vector<DecodeSequence> sequences = {MakeGrowing(1, 100, 500, /*parked_first=*/true),
                                                 MakeGrowing(2, 100, 500), MakeGrowing(3, 100, 500)};
  const auto sinks = AddTogether(sequences);
  ExpectStreams(sequences, sinks);
  EXPECT_EQ(TimesParked(sequences[0]), 1);
  EXPECT_EQ(TimesParked(sequences[1]) + TimesParked(sequences[2]), 0);
  ExpectNothingPromised();
}

TEST_F(Parking, AmongEqualsTheYoungestGoes) {
  MakeWorld(6, 16);
  const std::vector<DecodeSequence> sequences = {MakeGrowing(1, 100, 500), MakeGrowing(2, 100, 500),
                                                 MakeGrowing(3, 100, 500)};
  const auto sinks = AddTogether(sequences);
  ExpectStreams(sequences, sinks);
  EXPECT_EQ(TimesParked(sequences[0]) + TimesParked(sequences[1]), 0);
  EXPECT_EQ(TimesParked(sequences[2]), 1);
}

TEST_F(Parking, ALeaseThatDoesNotGrowIsNeverParked) {
  DecodeSequence full = MakeSequence(1, 100, 900);
  full.spans = std::make_shared<SpanRecorder>();
  Fill(full);
  const std::vector<DecodeSequence> sequences = {MakeGrowing(2, 100, 600), MakeGrowing(3, 100, 600), full};
  const auto sinks = AddTogether(sequences);
  ExpectStreams(sequences, sinks);
  EXPECT_GE(parkings_, 1);
  EXPECT_EQ(TimesParked(full), 0);
  ExpectNothingPromised();
}

// Nobody steps then, so nobody but the store can say that there is memory.
TEST_F(Parking, TheOldestWaitsWithItsMemoryUntilALeaseEnds) {
  const DecodeSequence idle = MakeSequence(1, 100, 6 * kKvBlockTokens - 100);
  const DecodeSequence sequence = MakeGrowing(2, 100, 700);
  const auto sink = Add(sequence);
  sink->AwaitTokens(2 * kKvBlockTokens - 100 - 1);  // it has no more before it needs a third block
  store_->Release(idle.lease);
  ExpectStreams({sequence}, {sink});
  EXPECT_EQ(parkings_, 0);
  ExpectNothingPromised();
}

// It has the only place, and too little memory; who has memory has no place.
TEST_F(Parking, WhoLacksMemoryMakesRoomInTheStepForWhoDoesNot) {
  MakeWorld(8, 1);
  const DecodeSequence full = MakeSequence(1, 1500, 6 * kKvBlockTokens - 1500);
  Fill(full);
  const std::vector<DecodeSequence> sequences = {MakeGrowing(2, 100, 700), full};
  const auto sinks = AddTogether(sequences);
  ExpectStreams(sequences, sinks);
  EXPECT_EQ(parkings_, 0);
  ExpectNothingPromised();
}

// Memory for it is there once `idle` is gone. Then `other` has all that is left, and the oldest wants more.
TEST_F(Parking, WhoCameBackGivesItsTokensBeforeItIsParkedAgainAndTheOldestWaitsForThat) {
  MakeWorld(6, 16);
  const LeaseId idle = MakeSequence(1, 100, 3 * kKvBlockTokens - 100).lease;
  LeaseId other;
  on_parking_ = [&](const DecodeParking& parking) {
    if (parking.one_more) {
      store_->Release(parkings_ == 0 ? idle : other);
    } else if (parkings_ == 1) {
      other = *store_->Reserve({.prompt_tokens = 1, .total_tokens = 2 * kKvBlockTokens});
    }
  };
  const std::vector<DecodeSequence> sequences = {MakeGrowing(2, 200, 600), MakeGrowing(3, 100, 600)};
  const auto sinks = AddTogether(sequences);
  ExpectStreams(sequences, sinks);
  EXPECT_EQ(parkings_, 2);
  EXPECT_EQ(TimesParked(sequences[0]), 0);
  int64_t backs = 0, steps = 0;
  for (const RecordedSpan& span : sequences[1].spans->Take().spans) {
    const std::string_view name(span.name);
    if (name == "parked") ++backs;
    if (name == "step" && backs == 1) ++steps;
  }
  EXPECT_EQ(backs, 2);
  EXPECT_GE(steps, kGuaranteedTokens);
}

// Else it would be parked for one of low priority, which is not to be parked so soon.
TEST_F(Parking, WhoComesBackLeavesABlockToEachThatHasMemory) {
  MakeWorld(6, 16);
  const LeaseId idle = MakeSequence(1, 100, 2 * kKvBlockTokens - 100).lease;
  on_parking_ = [&](const DecodeParking& parking) {
    if (parking.one_more && parkings_ == 0) store_->Release(idle);
  };
  const std::vector<DecodeSequence> sequences = {MakeGrowing(2, 100, 600, /*parked_first=*/true),
                                                 MakeGrowing(3, 100, 500), MakeGrowing(4, 100, 500)};
  const auto sinks = AddTogether(sequences);
  ExpectStreams(sequences, sinks);
  EXPECT_EQ(TimesParked(sequences[0]), 1);
  EXPECT_EQ(TimesParked(sequences[1]) + TimesParked(sequences[2]), 0);
  EXPECT_EQ(parkings_, 1);
}

TEST_F(Parking, OneThatIsCancelledWhileItIsParkedEndsAtTheNextStep) {
  MakeWorld(4, 16);
  const std::vector<DecodeSequence> sequences = {MakeGrowing(1, 100, 600), MakeGrowing(2, 100, 600)};
  const auto [first, second] = StopWhereTheSecondIsParked(sequences[0], sequences[1]);
  engine_->Cancel(last_added_);
  door_.LetPass(1);
  EXPECT_TRUE(absl::IsCancelled(second->AwaitEnd()));
  EXPECT_LT(first->ids().size(), 500u) << "which goes on";
  door_.Open();
  ExpectStreams({sequences[0]}, {first});
  ExpectNothingPromised();
}

TEST_F(Parking, WhoIsParkedWhenTheEngineStopsEnds) {
  MakeWorld(4, 16);
  const std::vector<DecodeSequence> sequences = {MakeGrowing(1, 100, 600), MakeGrowing(2, 100, 600)};
  const auto [first, second] = StopWhereTheSecondIsParked(sequences[0], sequences[1]);
  // Steps go on one by one until the engine has stopped: long before the first one has its 600 tokens.
  std::atomic<bool> stopped = false;
  std::thread stops([&] {
    engine_ = nullptr;
    stopped = true;
  });
  EXPECT_TRUE(testing::Await("the engine has stopped", [&] {
    door_.LetPass(1);
    return stopped.load();
  }));
  stops.join();
  for (const auto& sink : {first, second}) EXPECT_TRUE(absl::IsUnavailable(sink->AwaitEnd()));
  ExpectNothingHeld();
  EXPECT_EQ(store_->stats().promised_bytes, 0);
}

// In fewer places than sequences, so that some that are parked have never run, and with leases that do not grow, parts
// of prompts and calls that end.
TEST_F(Parking, ManyOfAllKindsAllGetOnHoweverFewThePlaces) {
  for (const int64_t places : {1, 3, 8}) {
    MakeWorld(11, places);
    std::mt19937 random(static_cast<uint32_t>(places));
    std::vector<DecodeSequence> sequences;
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    std::vector<SequenceNumber> numbers;
    door_.Shut();
    for (int i = 0; i < 10; ++i) {
      LeaseRequest request{.prompt_tokens = 2 + static_cast<int64_t>(random() % 185)};
      request.total_tokens = request.prompt_tokens + 500 + static_cast<int64_t>(random() % 500);
      if (i == 1) request.total_tokens = 256;
      if (i != 1) request.expected_tokens = request.prompt_tokens;
      if (i % 3 == 0) request.handed_tokens = request.prompt_tokens / 2;
      request.parked_first = random() % 3 == 0;
      sequences.push_back(testing::MakeHashSequence(*store_, i, request));
      Fill(sequences.back());
      sinks.push_back(Add(sequences.back()));
      numbers.push_back(last_added_);
    }
    door_.Open();
    for (const size_t i : {2, 5}) engine_->Cancel(numbers[i]);
    for (size_t i = 0; i < sinks.size(); ++i) {
      const absl::Status end = sinks[i]->AwaitEnd();
      if (i == 2 || i == 5) continue;
      EXPECT_EQ(end, absl::OkStatus());
      EXPECT_EQ(sinks[i]->ids(), ExpectedTokens(sequences[i])) << i << " in " << places << " places";
    }
    ExpectNothingPromised();
  }
  EXPECT_GE(parkings_, 3);
}

TEST_F(Parking, AnEngineThatComputesNoRowsOfPromptsRefusesLeasesThatGrow) {
  MakeEngine(16);
  const DecodeSequence sequence = MakeGrowing(1, 100, 50);
  const absl::Status refused = engine_->Add(sequence, std::make_shared<CollectingSink>()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("step_rows is 0"));
  ExpectNothingHeld();
}

}  // namespace
}  // namespace runahead
