// Requests beside decode workers that step few sequences at once: who has a first token is not silent behind others.
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/server/router/faults_fixture.h"

namespace runahead {
namespace {

using testing::Call;
using testing::FakeBehaviour;
using testing::FakeWorker;

constexpr char kWaitForSlots[] = "runahead_queue_requests{cause=\"slot\"}";
constexpr char kQueueDepth[] = "runahead_queue_depth{priority=\"normal\"}";

class SlotsTest : public testing::FaultsFixture {
 protected:
  // Decode workers that step so many sequences, and hold each that runs at its second token.
  void StartWithSlots(int decode_workers, int slots, int queue_size = 256) {
    Start({.prefill = 1,
           .decode = decode_workers,
           .queue_size = queue_size,
           .able = [slots](v1::Capabilities& able) { able.set_max_batch(slots); },
           .before = [](FakeWorker& worker) { worker.Change([](FakeBehaviour& b) { b.decode_until = 1; }); }});
    AwaitReady(1, decode_workers);
  }
  // A call that has its first token, and its lease.
  std::unique_ptr<Call> Running(size_t nth) {
    auto call = std::make_unique<Call>(*stub_, Ids(5, 50));
    prefill_[0]->AwaitStarts(nth);
    while (const auto response = call->Read()) {
      if (response->has_tokens()) break;
    }
    return call;
  }
  void LetDecode() {
    for (auto& worker : decode_) worker->Change([](FakeBehaviour& b) { b.decode_until = 1 << 30; });
  }
  double Slots(const std::string& worker, const std::string& state) {
    return Metric(absl::StrCat("runahead_decode_slots{state=\"", state, "\",worker=\"", worker, "\"}"));
  }
};

TEST_F(SlotsTest, WhoFindsNoSlotWaitsBeforeItsPrefillAndTheQueueSaysSo) {
  StartWithSlots(1, 2);
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 1; i <= 2; ++i) calls.push_back(Running(i));
  for (int i = 0; i < 3; ++i) calls.push_back(std::make_unique<Call>(*stub_, Ids(5, 50)));
  ASSERT_TRUE(MetricBecomes(kQueueDepth, 3));
  EXPECT_TRUE(MetricBecomes(kWaitForSlots, 3));
  EXPECT_EQ(prefill_[0]->AwaitStarts(2).size(), 2u) << "nobody is computed who could not go on";
  EXPECT_EQ(Slots("decode-0", "free"), 0);
  EXPECT_EQ(decode_[0]->leases(), 2u);
  LetDecode();
  for (auto& call : calls) {
    const testing::Got got = call->Finish();
    EXPECT_TRUE(got.status.ok()) << got.status;
    EXPECT_EQ(got.ids().size(), 50u);
  }
  EXPECT_EQ(Metric(kQueueDepth), 0);
  EXPECT_GT(Metric("runahead_queue_waits_total{cause=\"slot\"}"), 0);
}

TEST_F(SlotsTest, ASlotThatFreesIsTakenAtOnce) {
  StartWithSlots(1, 2);
  const std::unique_ptr<Call> one = Running(1), two = Running(2);
  Call waits(*stub_, Ids(5, 50));
  ASSERT_TRUE(MetricBecomes(kWaitForSlots, 1));
  one->Cancel();
  prefill_[0]->AwaitStarts(3);
  EXPECT_TRUE(MetricBecomes(kWaitForSlots, 0));
  LetDecode();
  EXPECT_TRUE(waits.Finish().status.ok());
  EXPECT_TRUE(two->Finish().status.ok());
}

TEST_F(SlotsTest, ASlotWhoseSequenceWaitsForMemoryIsParked) {
  StartWithSlots(1, 3);
  const std::unique_ptr<Call> one = Running(1), two = Running(2);
  decode_[0]->AwaitDecodes(2);
  decode_[0]->Change([](FakeBehaviour& b) { b.parked = 1; });
  ASSERT_TRUE(MetricBecomes("runahead_decode_slots{state=\"parked\",worker=\"decode-0\"}", 1));
  EXPECT_TRUE(MetricBecomes("runahead_decode_slots{state=\"free\",worker=\"decode-0\"}", 1));
  EXPECT_TRUE(MetricBecomes("runahead_decode_slots{state=\"running\",worker=\"decode-0\"}", 1))
      << "who is parked does not run";
  EXPECT_TRUE(MetricBecomes("runahead_decode_slots{state=\"promised\",worker=\"decode-0\"}", 0));
  decode_[0]->Change([](FakeBehaviour& b) { b.parked = 0; });
  EXPECT_TRUE(MetricBecomes("runahead_decode_slots{state=\"parked\",worker=\"decode-0\"}", 0));
  LetDecode();
  for (const auto* call : {&one, &two}) EXPECT_TRUE((*call)->Finish().status.ok());
}

TEST_F(SlotsTest, ACancelledWaiterLeavesAndTakesNoSlot) {
  StartWithSlots(1, 1);
  const std::unique_ptr<Call> runs = Running(1);
  Call gone(*stub_, Ids(5, 50));
  ASSERT_TRUE(MetricBecomes(kWaitForSlots, 1));
  Call next(*stub_, Ids(5, 50));
  ASSERT_TRUE(MetricBecomes(kWaitForSlots, 2));
  gone.Cancel();
  EXPECT_EQ(gone.Finish().status.code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(MetricBecomes(kWaitForSlots, 1));
  LetDecode();
  EXPECT_TRUE(runs->Finish().status.ok());
  EXPECT_TRUE(next.Finish().status.ok());
  EXPECT_EQ(prefill_[0]->AwaitStarts(2).size(), 2u);
}

TEST_F(SlotsTest, ARequestForOneTokenTakesNoSlot) {
  StartWithSlots(1, 1);
  const std::unique_ptr<Call> runs = Running(1);
  EXPECT_TRUE(Generate(Ids(5, 1)).status.ok());
}

TEST_F(SlotsTest, SeveralWorkersAreUsedEvenly) {
  StartWithSlots(3, 4);
  // A report that crosses a Reserve would count its lease twice until the next one.
  for (auto& worker : decode_) worker->Change([](FakeBehaviour& b) { b.loads = false; });
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 1; i <= 6; ++i) calls.push_back(Running(i));
  for (const auto& worker : decode_) EXPECT_EQ(worker->leases(), 2u);
  LetDecode();
  for (auto& call : calls) EXPECT_TRUE(call->Finish().status.ok());
}

TEST_F(SlotsTest, AWorkerThatDiesGivesItsPromisesBack) {
  StartWithSlots(2, 1);
  const std::unique_ptr<Call> one = Running(1), two = Running(2);
  v1::Capabilities again = Able("decode-0", v1::WORKER_ROLE_DECODE);
  again.set_max_batch(1);
  Restart(decode_[0], again);
  AwaitReady(1, 2);
  LetDecode();
  const testing::Got first = one->Finish(), second = two->Finish();
  EXPECT_TRUE(first.status.ok()) << first.status;
  EXPECT_TRUE(second.status.ok()) << second.status;
  EXPECT_GE(first.finished().failovers() + second.finished().failovers(), 1) << "it went on in the slot of the new one";
  EXPECT_TRUE(first.finished().failovers() == 0 || second.finished().failovers() == 0) << "the other one went on";
  ASSERT_TRUE(MetricBecomes("runahead_decode_slots{state=\"free\",worker=\"decode-0\"}", 1));
  ASSERT_TRUE(MetricBecomes("runahead_decode_slots{state=\"free\",worker=\"decode-1\"}", 1));
}

TEST_F(SlotsTest, AFullQueueRefusesWhoWouldWaitForASlot) {
  StartWithSlots(1, 1, /*queue_size=*/1);
  const std::unique_ptr<Call> runs = Running(1);
  Call waits(*stub_, Ids(5, 50));
  ASSERT_TRUE(MetricBecomes(kWaitForSlots, 1));
  const absl::Status refused = Generate(Ids(5, 50)).status;
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), ::testing::HasSubstr("queue_size is 1"));
  LetDecode();
  EXPECT_TRUE(waits.Finish().status.ok());
}

TEST_F(SlotsTest, SlotsThatTheWorkerSaysAreTakenAreNotGiven) {
  StartWithSlots(1, 2);
  // Two leases whose answers this router never had: the worker alone knows of them.
  v1::ReserveRequest request;
  request.set_prompt_tokens(5);
  request.set_total_tokens(50);
  const auto stub = v1::Decode::NewStub(grpc::CreateChannel(decode_[0]->address(), grpc::InsecureChannelCredentials()));
  std::vector<v1::ReserveReply> replies(2);
  for (v1::ReserveReply& reply : replies) {
    grpc::ClientContext context;
    request.set_epoch(0);
    ASSERT_TRUE(stub->Reserve(&context, request, &reply).ok());
  }
  ASSERT_TRUE(MetricBecomes("runahead_decode_slots{state=\"promised\",worker=\"decode-0\"}", 2));
  Call waits(*stub_, Ids(5, 50));
  ASSERT_TRUE(MetricBecomes(kWaitForSlots, 1));
  LetDecode();
  v1::DecodeRequest decode;
  *decode.mutable_lease() = replies[0].lease();
  decode.set_max_tokens(1);
  grpc::ClientContext context;
  v1::DecodeReply token;
  const auto reader = stub->Generate(&context, decode);
  while (reader->Read(&token)) {
  }
  EXPECT_TRUE(waits.Finish().status.ok()) << "the next pong says that a slot is free";
}

}  // namespace
}  // namespace runahead
