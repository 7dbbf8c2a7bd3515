// Whether an engine computes or waits, as its meter reads: who waits for others is not judged to hang, however long.
#include <cstdint>
#include <memory>

#include "gtest/gtest.h"
#include "tests/testing/await_reading.h"
#include "tests/worker/decode/engine_fixture.h"
#include "worker/decode/engine.h"

namespace runahead {
namespace {

using testing::AwaitRest;
using testing::ExpectedTokens;

class EngineProgress : public testing::DecodeEngineTest {
 protected:
  static constexpr absl::Duration kLong = absl::Seconds(5);  // leases that nobody decodes live for 30

  // It rests, goes on resting however much time passes, and gets nothing done.
  void ExpectItWaits() {
    const uint64_t done = AwaitRest(*progress_).done;
    clock_.Advance(kLong);
    const ProgressMeter::Reading reading = progress_->Read();
    EXPECT_FALSE(reading.computing);
    EXPECT_EQ(reading.since, absl::ZeroDuration());
    EXPECT_EQ(reading.done, done);
  }
};

TEST_F(EngineProgress, OneThatWaitsForKvIsNotComputing) {
  const DecodeSequence late = MakeSequence(2, 40, 5);
  const auto sink = Add(late);
  ExpectItWaits();
  testing::FillHashKv(*store_, late, 0);
  ExpectItWaits();  // one layer has come
  Fill(late);
  EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(sink->ids(), ExpectedTokens(late));
  ExpectItWaits();  // it has nothing to do
}

TEST_F(EngineProgress, AStepThatDoesNotEndIsComputingWhoeverWaitsBesideIt) {
  const DecodeSequence late = MakeSequence(2, 40, 5), ready = MakeSequence(3, 30, 5);
  const auto waits = Add(late);
  ExpectItWaits();
  door_.Shut();
  Fill(ready);
  const auto sink = Add(ready);
  door_.AwaitComing(1);
  const uint64_t before = progress_->Read().done;
  for (int look = 1; look <= 2; ++look) {
    clock_.Advance(kLong);
    const ProgressMeter::Reading hangs = progress_->Read();
    EXPECT_TRUE(hangs.computing);
    EXPECT_EQ(hangs.since, look * kLong) << "since the step began";
    EXPECT_EQ(hangs.done, before);
  }
  door_.LetPass(1);
  door_.AwaitComing(2);
  EXPECT_EQ(progress_->Read().done, before + 1);
  EXPECT_EQ(progress_->Read().since, absl::ZeroDuration()) << "of the second step";
  EXPECT_GE(progress_->Read().usual, kLong) << "as the first one took";
  door_.Open();
  EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
  ExpectItWaits();
  EXPECT_TRUE(waits->ids().empty());
}

// The oldest has memory, needs more, and what others hold is none that can be taken: nobody steps.
TEST_F(EngineProgress, OneWhoseSequencesAllWaitForMemoryIsNotComputing) {
  MakeStore(8);
  MakeEngine(16, 64);
  const DecodeSequence idle = MakeSequence(1, 100, 6 * kKvBlockTokens - 100);
  const DecodeSequence growing =
      testing::MakeHashSequence(*store_, 2, {.prompt_tokens = 100, .total_tokens = 800, .expected_tokens = 100});
  Fill(growing);
  const auto sink = Add(growing);
  ExpectItWaits();
  EXPECT_EQ(sink->ids().size(), static_cast<size_t>(2 * kKvBlockTokens - 100 - 1)) << "then it needs a third block";
  store_->Release(idle.lease);
  EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(sink->ids(), ExpectedTokens(growing));
  EXPECT_EQ(parkings_, 0);
  ExpectNothingHeld();
}

}  // namespace
}  // namespace runahead
