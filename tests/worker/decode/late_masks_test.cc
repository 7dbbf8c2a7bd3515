// Masks of answers that have a form, when they take longer than a step.
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/decode/engine_fixture.h"
#include "tests/worker/decode/fake_form.h"
#include "worker/decode/static_window_loop.h"

namespace runahead {
namespace {

using testing::CollectingSink;
using testing::Door;
using testing::ExpectedTokens;
using testing::FakeForm;
using testing::HasFakeForm;
using testing::HashModel;
using testing::SampleToken;

// Masks of the form "slow" wait at mask_door_, those of "quick" do not. "slow at once" is known to take long.
class LateMasksTest : public testing::DecodeEngineTest {
 protected:
  LateMasksTest() {
    grammars_ = testing::FakeForms([this](const std::string& text) -> std::shared_ptr<const CompiledGrammar> {
      if (text == "quick") return std::make_shared<FakeForm>([](int64_t) {});
      const auto slow = std::make_shared<FakeForm>([this](int64_t) { mask_door_.Pass(); });
      if (text == "slow at once") slow->SetTakesLong();
      return slow;
    });
    MakeEngine(16);
  }
  ~LateMasksTest() override {
    mask_door_.Open();
    engine_ = nullptr;  // before the door
  }

  DecodeSequence WithForm(int seed, const std::string& form, int64_t tokens = 12) {
    DecodeSequence sequence = MakeSequence(seed, 30, tokens);
    sequence.rules.structure = {.kind = StructureKind::kRegex, .text = form};
    sequence.output_ids = {30};
    return sequence;
  }
  std::shared_ptr<CollectingSink> AddFilled(const DecodeSequence& sequence) {
    Fill(sequence);
    return Add(sequence);
  }
  static std::vector<int32_t> ExpectedWithForm(const DecodeSequence& sequence) {
    std::vector<int32_t> ids = sequence.prompt_ids, output;
    ids.insert(ids.end(), sequence.output_ids.begin(), sequence.output_ids.end());
    for (int64_t i = static_cast<int64_t>(sequence.output_ids.size()); i < sequence.max_tokens; ++i) {
      std::vector<uint32_t> mask(MaskWords(HashModel::kVocab));
      for (int32_t id = 0; id < HashModel::kVocab; ++id) {
        if (HasFakeForm(i, id)) mask[id / 32] |= 1u << (id % 32);
      }
      const PenaltyCounts counts = testing::CountPenalties(sequence.sampling, ids, sequence.prompt_ids.size());
      ids.push_back(SampleToken(HashModel::Expected(ids), sequence.sampling, counts, ids.size(), mask));
      output.push_back(ids.back());
    }
    return output;
  }
  // The door is shut, and opens for each mask when another sequence has five tokens more: so masks are late.
  void ExpectTokensBesideAnother(const DecodeSequence& slow, CollectingSink& late, int masks) {
    const DecodeSequence plain = MakeSequence(2, 40, 60);
    mask_door_.AwaitComing(1);
    const auto other = AddFilled(plain);
    for (int mask = 1; mask <= masks; ++mask) {
      mask_door_.AwaitComing(mask);
      other->AwaitTokens(5 * mask);
      mask_door_.LetPass(1);
    }
    EXPECT_EQ(late.AwaitEnd(), absl::OkStatus());
    EXPECT_EQ(late.ids(), ExpectedWithForm(slow));
    EXPECT_EQ(other->AwaitEnd(), absl::OkStatus());
    EXPECT_EQ(other->ids(), ExpectedTokens(plain));
  }
  int64_t LateMasks() {
    engine_ = nullptr;
    int64_t late = 0;
    for (const DecodeStep& step : steps_) late += step.late_masks;
    return late;
  }

  Door mask_door_;
};

TEST_F(LateMasksTest, HoldUpNobodyElse) {
  mask_door_.Shut();
  const DecodeSequence slow = WithForm(1, "slow"), plain = MakeSequence(2, 40, 20), quick = WithForm(3, "quick");
  const auto late = AddFilled(slow);
  mask_door_.AwaitComing(1);
  const auto other = AddFilled(plain), of_a_form = AddFilled(quick);
  EXPECT_EQ(other->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(other->ids(), ExpectedTokens(plain));
  EXPECT_EQ(late->ids(), std::vector<int32_t>());
  mask_door_.Open();
  EXPECT_EQ(of_a_form->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(of_a_form->ids(), ExpectedWithForm(quick));
  EXPECT_EQ(late->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(late->ids(), ExpectedWithForm(slow));
  ExpectNothingHeld();
  EXPECT_GE(LateMasks(), 2) << "and then it was left out";
}

TEST_F(LateMasksTest, HoldUpNoQuickOnes) {
  mask_door_.Shut();
  const DecodeSequence slow = WithForm(1, "slow at once"), quick = WithForm(3, "quick");
  const auto late = AddFilled(slow);
  mask_door_.AwaitComing(1);  // already the first one of the first answer
  const auto of_a_form = AddFilled(quick);
  EXPECT_EQ(of_a_form->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(of_a_form->ids(), ExpectedWithForm(quick));
  EXPECT_EQ(late->ids(), std::vector<int32_t>());
  mask_door_.Open();
  EXPECT_EQ(late->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(late->ids(), ExpectedWithForm(slow));
}

TEST_F(LateMasksTest, AreWaitedForWhereNobodyElseDraws) {
  mask_door_.Shut();
  const DecodeSequence slow = WithForm(1, "slow");
  const auto late = AddFilled(slow);
  for (int i = 1; i < slow.max_tokens; ++i) {
    mask_door_.AwaitComing(i);
    mask_door_.LetPass(1);
  }
  EXPECT_EQ(late->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(late->ids(), ExpectedWithForm(slow));
  EXPECT_EQ(passes_, slow.max_tokens - 1) << "no pass was for nothing";
  EXPECT_EQ(LateMasks(), 0);
}

TEST_F(LateMasksTest, TakeNothingFromPromptsThatStepsCompute) {
  MakeEngine(16, /*step_rows=*/8);
  mask_door_.Shut();
  DecodeSequence slow = MakeSequence(1, 30, 6, /*handed=*/0);
  slow.rules.structure = {.kind = StructureKind::kRegex, .text = "slow"};
  slow.output_ids = {};
  const auto late = AddFilled(slow);
  ExpectTokensBesideAnother(slow, *late, 6);
  EXPECT_GE(LateMasks(), 1);
}

TEST_F(LateMasksTest, TakeNothingFromStaticWindows) {
  engine_ = nullptr;
  DecodeEngineOptions options;
  options.max_batch = 4;
  options.grammars = grammars_;
  options.on_step = [this](const DecodeStep& step) { steps_.push_back(step); };
  options.make_loop = [this](Stream& stream) {
    return StaticWindowLoop::Create(*model_, device_, *store_, stream, {*MakeStaticWindowSize(128, 129), 4});
  };
  engine_ = *DecodeEngine::Create(device_, model_, *store_, std::move(options), clock_);
  mask_door_.Shut();
  const DecodeSequence slow = WithForm(1, "slow", 6);
  const auto late = AddFilled(slow);
  ExpectTokensBesideAnother(slow, *late, 5);
  EXPECT_GE(LateMasks(), 1);
}

TEST_F(LateMasksTest, OfSequencesThatEndAreForgotten) {
  mask_door_.Shut();
  const DecodeSequence slow = WithForm(1, "slow"), plain = MakeSequence(2, 40, 20);
  const auto late = AddFilled(slow);
  const SequenceNumber number = last_added_;
  mask_door_.AwaitComing(1);
  const auto other = AddFilled(plain);
  engine_->Cancel(number);
  EXPECT_EQ(other->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(late->AwaitEnd().code(), absl::StatusCode::kCancelled);
  ExpectNothingHeld();
  mask_door_.Open();
}

}  // namespace
}  // namespace runahead
