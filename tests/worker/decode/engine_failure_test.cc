// Whom a failure of the engine's pass, or of what it gives, ends.
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/decode/engine_fixture.h"

namespace runahead {
namespace {

using testing::CollectingSink;
using testing::DecodeEngineTest;
using testing::ExpectedTokens;
using testing::HashModel;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(DecodeEngineTest, LogitsThatAreNotFiniteEndOnlyTheirSequence) {
  DecodeSequence greedy = MakeSequence(9, 10, 5), drawn = MakeSequence(10, 10, 5);
  const DecodeSequence healthy = MakeSequence(11, 10, 5);
  greedy.output_ids = drawn.output_ids = {HashModel::kPoison};
  drawn.sampling.temperature = 1;
  door_.Shut();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const DecodeSequence& sequence : {healthy, greedy, drawn}) {
    Fill(sequence);
    sinks.push_back(Add(sequence));
  }
  door_.Open();
  EXPECT_EQ(sinks[0]->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(sinks[0]->ids(), ExpectedTokens(healthy));
  for (const int i : {1, 2}) {
    EXPECT_EQ(sinks[i]->AwaitEnd().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(sinks[i]->ids(), IsEmpty());
  }
  ExpectNothingHeld();
}

TEST_F(DecodeEngineTest, NoTokenComesOfAStepThatFailedOnTheDevice) {
  const DecodeSequence failed = MakeSequence(12, 10, 5), next = MakeSequence(13, 10, 5);
  door_.Shut();
  Fill(failed);
  const auto failed_sink = Add(failed);
  door_.AwaitComing(1);
  device_.FailNextEvent();
  door_.Open();
  EXPECT_THAT(failed_sink->AwaitEnd().ToString(), HasSubstr("a kernel failed"));
  EXPECT_THAT(failed_sink->ids(), IsEmpty());
  Fill(next);
  const auto next_sink = Add(next);
  EXPECT_EQ(next_sink->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(next_sink->ids(), ExpectedTokens(next));
  ExpectNothingHeld();
}

TEST_F(DecodeEngineTest, ARowThatMakesItsPassFailEndsAlone) {
  std::vector<DecodeSequence> sequences;
  for (int i = 0; i < 13; ++i) {
    sequences.push_back(MakeSequence(300 + i, 100 * (i + 1), 12));
    if (i % 3 == 1) sequences.back().sampling.temperature = 0.8f, sequences.back().sampling.seed = i;
    if (i % 3 == 2) sequences.back().sampling.repetition_penalty = 1.3f;
  }
  bad_ = {304, 805, 1205};  // the third's fifth token, the eighth's sixth and the twelfth's
  door_.Shut();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const DecodeSequence& sequence : sequences) {
    Fill(sequence);
    sinks.push_back(Add(sequence));
  }
  door_.Open();
  for (int i = 0; i < 13; ++i) {
    const absl::Status end = sinks[i]->AwaitEnd();
    std::vector<int32_t> expected = ExpectedTokens(sequences[i]);
    if (i == 2 || i == 7 || i == 11) {
      EXPECT_THAT(end.ToString(), HasSubstr("the fake has had enough"));
      EXPECT_EQ(end.code(), absl::StatusCode::kInternal);
      expected.resize(i == 2 ? 4 : 5);
    } else {
      EXPECT_EQ(end, absl::OkStatus()) << i;
    }
    EXPECT_EQ(sinks[i]->ids(), expected) << i;
  }
  EXPECT_GE(largest_step_, 12);
  ExpectNothingHeld();
}

TEST_F(DecodeEngineTest, AFailureThatHitsEverybodyEndsEverybodyAfterABoundedNumberOfPasses) {
  std::vector<DecodeSequence> sequences;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  door_.Shut();
  for (int i = 0; i < 9; ++i) {
    sequences.push_back(MakeSequence(330 + i, 10, 12));
    Fill(sequences.back());
    sinks.push_back(Add(sequences.back()));
  }
  fail_ = true;
  door_.Open();
  for (const auto& sink : sinks) EXPECT_EQ(sink->AwaitEnd().code(), absl::StatusCode::kInternal);
  EXPECT_LE(passes_, 2 * 9);
  ExpectNothingHeld();
}

TEST_F(DecodeEngineTest, APassThatOnlyFewerRowsCanMakeCostsNobodyAToken) {
  std::vector<DecodeSequence> sequences;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  door_.Shut();
  for (int i = 0; i < 4; ++i) {
    sequences.push_back(MakeSequence(340 + i, 10 + i, 8));
    Fill(sequences.back());
  }
  // Where memory is short a pass over all fails, and smaller ones do not.
  model_->fail = [](absl::Span<const int32_t> positions) {
    return positions.size() > 3 ? absl::ResourceExhaustedError("no memory for four rows") : absl::OkStatus();
  };
  for (const DecodeSequence& sequence : sequences) sinks.push_back(Add(sequence));
  door_.Open();
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(sinks[i]->AwaitEnd(), absl::OkStatus());
    EXPECT_EQ(sinks[i]->ids(), ExpectedTokens(sequences[i]));
  }
  ExpectNothingHeld();
}

TEST_F(DecodeEngineTest, AFailedStepEndsItsSequencesAndTheNextOnesRun) {
  const DecodeSequence first = MakeSequence(12, 10, 5), second = MakeSequence(13, 10, 5);
  Fill(first);
  fail_ = true;
  const absl::Status end = Add(first)->AwaitEnd();
  EXPECT_EQ(end.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(end.ToString(), HasSubstr("the fake has had enough"));
  fail_ = false;
  Fill(second);
  EXPECT_EQ(Add(second)->AwaitEnd(), absl::OkStatus());
  ExpectNothingHeld();
}

}  // namespace
}  // namespace runahead
