// Loops stepped by hand: no stage, no thread but the device's.
#include "worker/prefill/prefill_loop.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "kernels/base/monotonic.h"
#include "tests/testing/device_tensor.h"
#include "tests/worker/prefill/stage_fixture.h"
#include "worker/prefill/chain_exchange.h"
#include "worker/prefill/job_memory.h"

namespace runahead {
namespace {

// A loop with memory of its own: a ring of `slots` layer buffers, and what it keeps from layer to layer.
struct SteppedLoop {
  SteppedLoop(const LoadedModel& loaded, Stream& stream, ForwardScratch& shared, HandoffSender& handoff,
              PrefillJob of_job, int64_t slots, TraceSink* trace)
      : job(std::move(of_job)), own(*loaded.device) {
    const LayerRows rows = LayerRowsOf(job, *loaded.model, *loaded.device);
    const auto memory = loaded.device->Allocate(slots * rows.bytes(), MemoryKind::kDevice);
    auto ring = LayerRing::Create(BufferRef::Whole(*memory), loaded.model->config().layers, rows);
    auto exchange = std::make_unique<ChainExchange>(job, *loaded.model, *std::move(ring), *loaded.device, stream,
                                                    handoff, stop, trace);
    ForwardBatch batch;
    batch.ids.assign(job.ids.end() - job.tokens(), job.ids.end());
    batch.kv = exchange->Layout();
    if (job.tail()) batch.logit_rows = {job.tokens() - 1};
    std::vector<std::unique_ptr<Exchange>> exchanges;
    exchanges.push_back(std::move(exchange));
    loop = std::make_unique<PrefillLoop>(*loaded.model, *loaded.device, stream, PassMemory{own, shared},
                                         std::move(batch), std::move(exchanges));
  }

  PrefillWait Step() {
    auto next = loop->Step();
    EXPECT_TRUE(next.ok()) << next.status();
    RUNAHEAD_CHECK(next.ok());
    return *std::move(next);
  }

  const PrefillJob job;
  const JobStop stop;
  ForwardScratch own;
  std::unique_ptr<PrefillLoop> loop;
};

class PrefillLoopTest : public StageTest {
 protected:
  static constexpr int64_t kTokens = 100, kHead = 40;

  // Of part `part` on its member of the chain; the parts of member 1 share a stream.
  std::unique_ptr<SteppedLoop> Loop(JobId job, int first, int part, const std::vector<int64_t>& bounds,
                                    int64_t slots = 0, int64_t x_tokens = 0) {
    const bool tail_stream = first + part == 1;
    PrefillJob of = chain_.JobOf(job, first, part, bounds, ids_, EveryLogprob(loaded_), true, absl::InfiniteFuture());
    of.x_tokens = x_tokens;
    return std::make_unique<SteppedLoop>(loaded_, tail_stream ? *tail_stream_ : *head_stream_,
                                         tail_stream ? tail_shared_ : head_shared_, chain_.handoff(), std::move(of),
                                         slots == 0 ? layers() : slots, &trace_);
  }
  // Steps to the end; frames go as they come.
  void StepToTheEnd(SteppedLoop& loop, PrefillWait wait) {
    for (;;) {
      ASSERT_TRUE(chain_.DeliverUntil("what the loop waits for has come", [&] { return wait.event.fired(); }));
      ASSERT_TRUE(wait.event.status()->ok()) << *wait.event.status();
      if (loop.loop->done()) return;
      wait = loop.Step();
    }
  }
  void ExpectReference(const SteppedLoop& loop, int64_t tokens) {
    DeviceMemory memory(loaded_.device);
    ExpectLogits(memory.Read(loop.loop->logits()), Reference({ids_.begin(), ids_.begin() + tokens}).logits.back());
  }

  const std::vector<int32_t> ids_ = RandomIds(kTokens, 320, 31);
  TestChain chain_{loaded_, 2, kTokens, 0, LoopbackNetwork::Delivery::kManual};
  KeepingTrace trace_;
  ForwardScratch head_shared_{*loaded_.device}, tail_shared_{*loaded_.device};
  std::unique_ptr<Stream> head_stream_ = loaded_.device->NewStream("head"),
                          tail_stream_ = loaded_.device->NewStream("tail");
};

TEST_F(PrefillLoopTest, TwoLoopsThatAreHalfDoneOnOneStreamGiveWhatEachGivesAlone) {
  const auto head = Loop(1, 0, 0, {0, kHead, kTokens}), tail = Loop(1, 0, 1, {0, kHead, kTokens});
  const auto short_one = Loop(2, 1, 0, {0, 30});
  PrefillWait tail_waits = tail->Step(), head_waits = head->Step(), short_waits;
  for (int64_t layer = 0; layer < layers(); ++layer) {
    // The tail waits for KV of each layer; a layer of the short one is enqueued before its own part is attended.
    EXPECT_EQ(tail_waits.what, PrefillWait::For::kKv);
    EXPECT_FALSE(tail_waits.event.fired()) << layer;
    short_waits = short_one->Step();
    while (!tail_waits.event.fired()) {
      chain_.network().DeliverAll();
      if (head_waits.event.fired() && !head->loop->done()) head_waits = head->Step();
    }
    do {
      tail_waits = tail->Step();
      while (tail_waits.what == PrefillWait::For::kDevice && !tail_waits.event.fired())
        tail_waits.event.Wait().IgnoreError();
    } while (tail_waits.what == PrefillWait::For::kDevice && !tail->loop->done());
  }
  StepToTheEnd(*short_one, short_waits);
  StepToTheEnd(*tail, tail_waits);
  StepToTheEnd(*head, head_waits);
  ExpectReference(*tail, kTokens);
  ExpectReference(*short_one, 30);
  EXPECT_EQ(head->loop->logits().rows, 0);
}

TEST_F(PrefillLoopTest, AShortPromptComesToItsEndWhileTheLongOneWaitsForAFrame) {
  const auto head = Loop(1, 0, 0, {0, kHead, kTokens}), tail = Loop(1, 0, 1, {0, kHead, kTokens});
  const PrefillWait waits = tail->Step();
  const auto short_one = Loop(2, 1, 0, {0, 30});
  StepToTheEnd(*short_one, short_one->Step());
  ExpectReference(*short_one, 30);
  EXPECT_FALSE(waits.event.fired());
  StepToTheEnd(*head, head->Step());
  StepToTheEnd(*tail, waits);
  ExpectReference(*tail, kTokens);
}

// Its receives are posted and its own KV is on its way before it waits.
TEST_F(PrefillLoopTest, AStepThatWaitsForKvHoldsNobodyUp) {
  const auto head = Loop(1, 0, 0, {0, kHead, kTokens});
  head->Step();
  trace_.Await(1, 0, TracePoint::kReceivePosted);
  trace_.Await(1, 0, TracePoint::kSendPosted);
  trace_.Await(1, 0, TracePoint::kHandedOff);
}

TEST_F(PrefillLoopTest, WaitsForTheDeviceSoThatFewLayersAreAhead) {
  trace_.HoldAt(TracePoint::kLayerEnd);
  const auto alone = Loop(1, 1, 0, {0, kTokens});
  PrefillWait wait = alone->Step();
  while (wait.what != PrefillWait::For::kDevice) wait = alone->Step();  // there is no KV of others to wait for
  EXPECT_FALSE(alone->loop->done());
  trace_.Await(1, 0, TracePoint::kLayerEnd);
  EXPECT_FALSE(wait.event.fired());
  EXPECT_FALSE(trace_.Has(1, 2, TracePoint::kQkvBegin));
  trace_.Release();
  StepToTheEnd(*alone, wait);
  ExpectReference(*alone, kTokens);
}

TEST_F(PrefillLoopTest, WaitsForALayerBufferThatIsNotHandedOff) {
  chain_.handoff().Block();
  const auto alone = Loop(1, 1, 0, {0, kTokens}, kMinLayerSlots);
  PrefillWait wait = alone->Step();
  while (wait.what != PrefillWait::For::kLayerBuffer) {
    EXPECT_TRUE(wait.event.Wait().ok());
    wait = alone->Step();
  }
  trace_.Await(1, kMinLayerSlots - 1, TracePoint::kLayerEnd);
  EXPECT_FALSE(wait.event.fired());
  chain_.handoff().Unblock();
  StepToTheEnd(*alone, wait);
  ExpectReference(*alone, kTokens);
}

TEST_F(PrefillLoopTest, WaitsForALayerBufferOfWhichXIsNotHandedOffThoughKvIs) {
  chain_.handoff().Block({SliceKind::kX});
  const auto alone = Loop(1, 1, 0, {0, kTokens}, kMinLayerSlots, kTokens);
  PrefillWait wait = alone->Step();
  while (wait.what != PrefillWait::For::kLayerBuffer) {
    ASSERT_FALSE(alone->loop->done());
    EXPECT_TRUE(wait.event.Wait().ok());
    wait = alone->Step();
  }
  for (int64_t layer = 0; layer < kMinLayerSlots; ++layer) trace_.Await(1, layer, TracePoint::kHandedOff);
  trace_.Await(1, kMinLayerSlots - 1, TracePoint::kLayerEnd);
  EXPECT_FALSE(trace_.Has(1, 0, TracePoint::kXHandedOff));
  EXPECT_FALSE(wait.event.fired());
  chain_.handoff().Unblock();
  StepToTheEnd(*alone, wait);
  EXPECT_TRUE(trace_.Has(1, 0, TracePoint::kXHandedOff));
  ExpectReference(*alone, kTokens);
}

TEST_F(PrefillLoopTest, WaitsForALayerBufferThatItsSuccessorHasNotTaken) {
  const auto head = Loop(1, 0, 0, {0, kHead, kTokens}, kMinLayerSlots);
  PrefillWait wait = head->Step();
  while (wait.what != PrefillWait::For::kLayerBuffer) {
    ASSERT_FALSE(head->loop->done());
    EXPECT_TRUE(wait.event.Wait().ok());
    wait = head->Step();
  }
  trace_.Await(1, kMinLayerSlots - 1, TracePoint::kHandedOff);
  EXPECT_FALSE(wait.event.fired());
  const auto tail = Loop(1, 0, 1, {0, kHead, kTokens});
  PrefillWait tail_waits = tail->Step();
  while (!tail->loop->done()) {
    while (!tail_waits.event.fired()) {
      chain_.network().DeliverAll();
      if (wait.event.fired() && !head->loop->done()) wait = head->Step();
    }
    tail_waits = tail->Step();
  }
  StepToTheEnd(*head, wait);
  StepToTheEnd(*tail, tail_waits);
  ExpectReference(*tail, kTokens);
}

TEST_F(PrefillLoopTest, OnlyAWaitForALayerBufferIsAStallOfTheRing) {
  const auto alone = Loop(1, 1, 0, {0, kTokens});
  const PrefillWait wait = alone->Step();
  const absl::Time now = MonotonicNow();
  alone->loop->AddWaited(PrefillWait::For::kLayerBuffer, now, now + absl::Seconds(2));
  alone->loop->AddWaited(PrefillWait::For::kDevice, now, now + absl::Seconds(3));
  EXPECT_EQ(alone->loop->times(0).ring_stall_s, 2);
  StepToTheEnd(*alone, wait);
}

TEST_F(PrefillLoopTest, ALoopThatIsGivenUpLeavesTheStreamToOthers) {
  const PrefillWait waits = [&] {
    const auto tail = Loop(1, 0, 1, {0, kHead, kTokens});
    const PrefillWait kv = tail->Step();
    tail->job.predecessor->Drop(1);
    EXPECT_FALSE(kv.event.Wait().ok());
    EXPECT_TRUE(tail->stop.reason().has_value());
    WhenAll(tail->loop->exchange(0).pending()).Wait().IgnoreError();
    EXPECT_TRUE(loaded_.device->Record(*tail_stream_).Wait().ok());
    return kv;
  }();
  const auto next = Loop(2, 1, 0, {0, kTokens});
  StepToTheEnd(*next, next->Step());
  ExpectReference(*next, kTokens);
}

}  // namespace
}  // namespace runahead
