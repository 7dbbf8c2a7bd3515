// Sequences of whose prompt some tokens were not handed off, and whose output began elsewhere: the engine computes
// their rows beside what it decodes.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/decode/engine_fixture.h"
#include "worker/decode/engine.h"

namespace runahead {
namespace {

using testing::CollectingSink;
using testing::DecodeEngineTest;
using testing::ExpectedTokens;
using ::testing::HasSubstr;

constexpr int64_t kStepRows = 16;

class EngineRows : public DecodeEngineTest {
 protected:
  EngineRows() { MakeEngine(16, kStepRows); }

  // Of whose prompt the first `handed` tokens have come.
  DecodeSequence MakePart(int seed, int64_t prompt, int64_t max_tokens, int64_t handed) {
    const DecodeSequence sequence = MakeSequence(seed, prompt, max_tokens, handed);
    Fill(sequence);
    return sequence;
  }
  // All of them before the first step.
  std::vector<std::shared_ptr<CollectingSink>> AddTogether(const std::vector<const DecodeSequence*>& sequences) {
    door_.Shut();
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (const DecodeSequence* sequence : sequences) sinks.push_back(Add(*sequence));
    door_.Open();
    return sinks;
  }
  std::vector<Sampled> Run(const DecodeSequence& sequence) {
    const std::shared_ptr<CollectingSink> sink = Add(sequence);
    EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
    return sink->tokens();
  }
};

TEST_F(EngineRows, APromptOfWhichSomeTokensCameGivesWhatItGivesHandedOffAsAWhole) {
  for (const int64_t handed : {0, 1, 255, 256, 299, 300}) {
    model_->prompt_rows = 0;
    const DecodeSequence sequence = MakePart(1, 300, 20, handed);
    const std::shared_ptr<CollectingSink> sink = Add(sequence);
    EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
    EXPECT_EQ(sink->ids(), ExpectedTokens(sequence)) << handed;
    EXPECT_EQ(model_->prompt_rows, 300 - handed) << "each row once, by prefill's arithmetic";
  }
  ExpectNothingHeld();
}

TEST_F(EngineRows, WithoutAFirstTokenItIsDrawnFromThePromptsLastRow) {
  for (const int64_t handed : {0, 40, 99}) {
    DecodeSequence sequence = MakePart(2, 100, 12, handed);
    sequence.output_ids = {};
    sequence.sampling.temperature = 0.8f;
    sequence.sampling.seed = 7;
    sequence.sampling.repetition_penalty = 1.2f;
    const std::shared_ptr<CollectingSink> sink = Add(sequence);
    EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
    EXPECT_EQ(sink->ids(), ExpectedTokens(sequence)) << handed;
    EXPECT_EQ(sink->ids().size(), 12u);
  }
  ExpectNothingHeld();
}

// Ids and log probabilities: what draws, penalties and logprobs look at is where it was.
TEST_F(EngineRows, AnAnswerGoesOnAnywhereAsIfItHadNeverStopped) {
  std::vector<SamplingOptions> options(3);
  options[0].logprobs = 3;
  options[1].temperature = 0.9f, options[1].seed = 11, options[1].top_k = 20, options[1].logprobs = 2;
  options[2].temperature = 0.7f, options[2].repetition_penalty = 1.3f, options[2].frequency_penalty = 0.4f;
  for (const SamplingOptions& sampling : options) {
    DecodeSequence whole = MakePart(3, 270, 60, 270);
    whole.sampling = sampling;
    const std::vector<Sampled> expected = Run(whole);
    ASSERT_EQ(expected.size(), 59u);
    for (const auto& [handed, known] : {std::pair<int64_t, size_t>{270, 1}, {270, 30}, {100, 2}, {0, 58}}) {
      DecodeSequence part = MakePart(3, 270, 60, handed);
      part.sampling = sampling;
      for (size_t i = 0; i < known; ++i) part.output_ids.push_back(expected[i].id);
      const std::vector<Sampled> got = Run(part);
      ASSERT_EQ(got.size(), expected.size() - known) << handed << " " << known;
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].id, expected[known + i].id);
        ASSERT_EQ(got[i].logprobs.size(), expected[known + i].logprobs.size());
        for (size_t k = 0; k < got[i].logprobs.size(); ++k) {
          EXPECT_EQ(got[i].logprobs[k].logprob, expected[known + i].logprobs[k].logprob);
        }
      }
    }
  }
  ExpectNothingHeld();
}

TEST_F(EngineRows, OutputIsComputedByDecodesArithmeticAlone) {
  DecodeSequence sequence = MakePart(4, 30, 50, 30);
  const std::vector<int32_t> expected = ExpectedTokens(sequence);
  sequence.output_ids.insert(sequence.output_ids.end(), expected.begin(), expected.begin() + 40);
  EXPECT_EQ(Run(sequence).size(), 9u);
  EXPECT_EQ(model_->prompt_rows, 0);
  engine_ = nullptr;
  EXPECT_EQ(steps_.size(), 3u + 8) << "41 rows in passes of 16, whose pieces take memory; then a step a token";
}

TEST_F(EngineRows, WhoDecodesHasATokenBetweenAnyTwoPassesOverPrompts) {
  const DecodeSequence decodes = MakePart(5, 20, 40, 20), late = MakePart(6, 600, 5, 100),
                       later = MakePart(7, 90, 5, 0);
  const auto sinks = AddTogether({&decodes, &late, &later});
  size_t i = 0;
  for (const DecodeSequence* sequence : {&decodes, &late, &later}) {
    EXPECT_EQ(sinks[i]->AwaitEnd(), absl::OkStatus());
    EXPECT_EQ(sinks[i++]->ids(), ExpectedTokens(*sequence));
  }
  engine_ = nullptr;
  int64_t rows = 0, limited = 0, in_a_row = 0, decoded = 0;
  for (const DecodeStep& pass : steps_) {
    const bool both_wait = rows < 500;
    rows += pass.prompt_rows;
    in_a_row = pass.prompt_rows > 0 ? in_a_row + 1 : 0;
    if (pass.prompt_rows == 0) ++decoded;
    if (decoded >= 39) continue;  // `decodes` has ended
    EXPECT_LE(pass.prompt_rows, both_wait ? 2 * kStepRows : kStepRows);
    EXPECT_LE(in_a_row, decoded == 0 ? 2 : 1);
    if (pass.prompt_rows == 2 * kStepRows) ++limited;
  }
  EXPECT_EQ(rows, 500 + 90);
  EXPECT_GE(limited, 500 / (2 * kStepRows)) << "each prompt that waits has its rows";
}

TEST_F(EngineRows, RowsThatNobodyWaitsForComeInLongPasses) {
  Run(MakePart(8, 600, 2, 0));
  engine_ = nullptr;
  ASSERT_GE(steps_.size(), 2u);
  const int64_t longest = LongestPass(kStepRows, device_);
  EXPECT_GT(longest, kStepRows);
  EXPECT_LE(longest, 16 * kStepRows) << "who joins meanwhile waits for it";
  EXPECT_EQ(steps_[0].prompt_rows, longest);
  EXPECT_EQ(steps_[1].prompt_rows, std::min(longest, 600 - longest));
}

TEST_F(EngineRows, APromptsRowThatFailsEndsItsSequenceAlone) {
  bad_ = {130};
  const DecodeSequence fails = MakePart(9, 200, 5, 100), other = MakePart(10, 120, 5, 60),
                       whole = MakePart(11, 50, 5, 50);
  const auto sinks = AddTogether({&fails, &other, &whole});
  EXPECT_EQ(sinks[0]->AwaitEnd().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(sinks[1]->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(sinks[1]->ids(), ExpectedTokens(other));
  EXPECT_EQ(sinks[2]->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(sinks[2]->ids(), ExpectedTokens(whole));
  ExpectNothingHeld();
}

TEST_F(EngineRows, OneThatIsCancelledInItsPromptEnds) {
  const DecodeSequence sequence = MakePart(12, 1500, 5, 0);
  door_.Shut();
  const std::shared_ptr<CollectingSink> sink = Add(sequence);
  door_.AwaitComing(1);
  engine_->Cancel(last_added_);
  door_.Open();
  EXPECT_TRUE(absl::IsCancelled(sink->AwaitEnd()));
  engine_ = nullptr;
  EXPECT_EQ(steps_.size(), 1u);
}

TEST_F(EngineRows, OutputThatHasEndedIsNotComputed) {
  DecodeSequence sequence = MakePart(13, 50, 3, 0);
  const std::vector<int32_t> expected = ExpectedTokens(sequence);
  sequence.output_ids.insert(sequence.output_ids.end(), expected.begin(), expected.end());
  EXPECT_TRUE(Run(sequence).empty());
  EXPECT_EQ(model_->prompt_rows, 0);
}

TEST_F(EngineRows, ThePromptsLastTokenMustBeLeftWhereTheFirstIsDrawnHere) {
  DecodeSequence sequence = MakePart(14, 50, 3, 50);
  sequence.output_ids = {};
  const absl::Status refused = engine_->Add(sequence, std::make_shared<CollectingSink>()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("its last token must be computed here"));
  ExpectNothingHeld();
}

TEST_F(EngineRows, AnEngineWithoutThemRefusesPromptsThatNeedThemAndSaysWhy) {
  MakeEngine(16);
  EXPECT_TRUE(absl::IsFailedPrecondition(engine_->CheckRows()));
  DecodeSequence longer = MakePart(15, 50, 9, 49);
  longer.output_ids.push_back(1);
  for (const DecodeSequence& sequence : {MakePart(16, 50, 3, 20), longer}) {
    const absl::Status refused = engine_->Add(sequence, std::make_shared<CollectingSink>()).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("step_rows is 0"));
  }
  ExpectNothingHeld();
}

TEST_F(EngineRows, WithoutThemOutputThatIsThereIsComputedARowAStep) {
  MakeEngine(16);
  DecodeSequence known = MakePart(17, 50, 12, 50);
  const std::vector<int32_t> expected = ExpectedTokens(known);
  known.output_ids.insert(known.output_ids.end(), expected.begin(), expected.begin() + 7);
  const DecodeSequence decodes = MakePart(18, 30, 12, 30), first = MakePart(19, 30, 2, 30);
  // While the step of `first` stands at the door, both others come: they join in the same step.
  door_.Shut();
  const std::shared_ptr<CollectingSink> waits = Add(first);
  door_.AwaitComing(1);
  const auto sinks = AddTogether({&known, &decodes});
  EXPECT_EQ(waits->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(sinks[0]->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(sinks[0]->ids(), std::vector<int32_t>(expected.begin() + 7, expected.end()));
  EXPECT_EQ(sinks[1]->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(sinks[1]->ids(), ExpectedTokens(decodes));
  engine_ = nullptr;
  EXPECT_EQ(steps_.size(), 1u + 11) << "each takes as many as if both were decoded";
  ExpectNothingHeld();
}

}  // namespace
}  // namespace runahead
