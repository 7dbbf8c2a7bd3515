// What every kind of edge does. The tests of each kind instantiate it; it runs over all of them.
#include "tests/worker/link/edge_contract.h"

namespace runahead::testing {

TEST_P(EdgeContract, FramesAreMatchedByIdInWhateverOrderTheyArePosted) {
  const auto a = Open(0, 1), b = Open(1, 0);
  std::vector<Event> sent, received;
  std::vector<BufferRef> into;
  for (int layer = 0; layer < 8; ++layer) {
    sent.push_back(a->Send({1, layer, 0}, Pattern(layer % 2 ? kLarge : kSmall, layer), Event()));
  }
  for (int layer = 7; layer >= 0; --layer) {
    into.push_back(Room(layer % 2 ? kLarge : kSmall));
    received.push_back(b->Recv({1, layer, 0}, into.back()));
  }
  for (int i = 0; i < 8; ++i) {
    EXPECT_TRUE(Await(received[i]).ok()) << received[i].status().value();
    EXPECT_EQ(Bytes(into[i]), Bytes(Pattern(into[i].size, 7 - i)));
    EXPECT_TRUE(Await(sent[i]).ok());
  }
  EXPECT_TRUE(Await(a->Finish(1)).ok());
  EXPECT_EQ(world_->live_jobs(0, 1), 0u);
  EXPECT_EQ(world_->live_jobs(1, 0), 0u);
}

TEST_P(EdgeContract, FramesFlowBothWaysAndOnSeveralEdges) {
  const auto ab = Open(0, 1), ba = Open(1, 0), bc = Open(1, 2), cb = Open(2, 1);
  BufferRef at_b = Room(kLarge), at_a = Room(kLarge), at_c = Room(kLarge);
  const Event b_got = ba->Recv({5, 0, 0}, at_b);
  const Event a_got = ab->Recv({5, 0, 1}, at_a);
  const Event c_got = cb->Recv({5, 0, 0}, at_c);
  ab->Send({5, 0, 0}, Pattern(kLarge, 1), Event());
  ba->Send({5, 0, 1}, Pattern(kLarge, 2), Event());
  // Cut-through: forwarded as soon as it is whole.
  bc->Send({5, 0, 0}, at_b, b_got);
  EXPECT_TRUE(Await(a_got).ok());
  EXPECT_TRUE(Await(c_got).ok());
  EXPECT_EQ(Bytes(at_c), Bytes(Pattern(kLarge, 1)));
  EXPECT_EQ(Bytes(at_a), Bytes(Pattern(kLarge, 2)));
}

TEST_P(EdgeContract, ASendWaitsForItsEventAndCarriesItsFailure) {
  const auto a = Open(0, 1), b = Open(1, 0);
  EventSource ready, failed;
  const Event sent = a->Send({1, 0, 0}, Pattern(kSmall, 1), ready.event());
  const Event refused = a->Send({1, 1, 0}, Pattern(kSmall, 2), failed.event());
  const Event finished = a->Finish(1);
  BufferRef into = Room(kSmall);
  const Event got = b->Recv({1, 0, 0}, into);
  const Event never = b->Recv({1, 1, 0}, Room(kSmall));
  failed.Fire(absl::DataLossError("compute failed"));
  EXPECT_EQ(Code(refused), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(sent.fired());
  EXPECT_FALSE(finished.fired());
  ready.Fire(absl::OkStatus());
  EXPECT_TRUE(Await(got).ok());
  EXPECT_TRUE(Await(sent).ok());
  EXPECT_TRUE(Await(finished).ok());
  EXPECT_EQ(Code(never), absl::StatusCode::kCancelled);
}

TEST_P(EdgeContract, AReceiveIsOnTheWireFromWhenItsBytesComeNotFromWhenItIsPosted) {
  const auto a = Open(0, 1), b = Open(1, 0);
  for (const size_t bytes : {kSmall, kLarge}) {
    SCOPED_TRACE(bytes);
    const JobId job = bytes;
    EventSource computed;
    const Reception first = b->Recv({job, 0, 0}, Room(bytes));
    const Reception second = b->Recv({job, 1, 0}, Room(bytes));
    a->Send({job, 0, 0}, Pattern(bytes, 1), Event());
    a->Send({job, 1, 0}, Pattern(bytes, 2), computed.event());
    // The sender computes the second frame until the first has come.
    ASSERT_TRUE(Await(first).ok());
    const absl::Time released = MonotonicNow();
    computed.Fire(absl::OkStatus());
    ASSERT_TRUE(Await(second).ok());
    EXPECT_LE(first.wire()->first, first.wire()->last);
    EXPECT_LE(first.wire()->last, released);
    EXPECT_GE(second.wire()->first, released);
    EXPECT_LE(second.wire()->first, second.wire()->last);
    EXPECT_LE(second.wire()->last, MonotonicNow());
    EndJob(*a, *b, job);
  }
}

TEST_P(EdgeContract, FinishFiresOnlyWhenThePeerHasReceivedEverything) {
  const auto a = Open(0, 1), b = Open(1, 0);
  a->Send({1, 0, 0}, Pattern(kSmall, 1), Event());
  a->Send({1, 1, 0}, Pattern(kLarge, 2), Event());
  const Event finished = a->Finish(1);
  EXPECT_TRUE(Await(b->Recv({1, 0, 0}, Room(kSmall))).ok());
  // Another job passes meanwhile, so that it is not for want of time that Finish has not fired.
  a->Send({2, 0, 0}, Pattern(kLarge, 3), Event());
  const Event other = a->Finish(2);
  EXPECT_TRUE(Await(b->Recv({2, 0, 0}, Room(kLarge))).ok());
  EXPECT_TRUE(Await(other).ok());
  EXPECT_FALSE(finished.fired());
  EXPECT_TRUE(Await(b->Recv({1, 1, 0}, Room(kLarge))).ok());
  EXPECT_TRUE(Await(finished).ok());
}

TEST_P(EdgeContract, DropBeforeAnyFrameDiscardsWhatComes) {
  const auto a = Open(0, 1), b = Open(1, 0);
  const Event waiting = b->Recv({1, 0, 0}, Room(kLarge));
  b->Drop(1);
  b->Drop(1);
  EXPECT_EQ(Code(waiting), absl::StatusCode::kCancelled);
  const Event small = a->Send({1, 0, 0}, Pattern(kSmall, 1), Event());
  const Event large = a->Send({1, 1, 0}, Pattern(kLarge, 1), Event());
  const Event finished = a->Finish(1);
  EXPECT_EQ(Code(finished), absl::StatusCode::kCancelled);
  Await(small).IgnoreError();  // OK when it was on its way already
  Await(large).IgnoreError();
  EXPECT_EQ(Code(b->Recv({1, 2, 0}, Room(kSmall))), absl::StatusCode::kCancelled);
  EndJob(*a, *b, 1);
  EXPECT_EQ(world_->live_jobs(0, 1), 0u);
  EXPECT_EQ(world_->live_jobs(1, 0), 0u);
}

TEST_P(EdgeContract, DropOfTheReceiverLetsAnnouncedFramesGo) {
  const auto a = Open(0, 1), b = Open(1, 0);
  const Event first = a->Send({1, 0, 0}, Pattern(kLarge, 1), Event());
  const Event second = a->Send({1, 1, 0}, Pattern(kLarge, 1), Event());
  BufferRef into = Room(kLarge);
  EXPECT_TRUE(Await(b->Recv({1, 0, 0}, into)).ok());
  EXPECT_TRUE(Await(first).ok());
  b->Drop(1);
  EXPECT_NE(Code(second), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Code(a->Finish(1)), absl::StatusCode::kCancelled);
  EndJob(*a, *b, 1);
  EXPECT_EQ(world_->live_jobs(0, 1), 0u);
  EXPECT_EQ(world_->live_jobs(1, 0), 0u);
}

TEST_P(EdgeContract, DropOfTheSenderCancelsWhatIsNotAnnouncedAndThePeersReceives) {
  const auto a = Open(0, 1), b = Open(1, 0);
  EventSource never;
  const Event held = a->Send({1, 0, 0}, Pattern(kLarge, 1), never.event());
  const Event wanted = b->Recv({1, 0, 0}, Room(kLarge));
  a->Drop(1);
  EXPECT_EQ(Code(held), absl::StatusCode::kCancelled);
  EXPECT_EQ(Code(wanted), absl::StatusCode::kCancelled);
  EXPECT_EQ(Code(a->Send({1, 1, 0}, Pattern(kSmall, 1), Event())), absl::StatusCode::kCancelled);
  EndJob(*a, *b, 1);
  EXPECT_EQ(world_->live_jobs(0, 1), 0u);
  EXPECT_EQ(world_->live_jobs(1, 0), 0u);
  // Other jobs on the edge are unharmed.
  a->Send({2, 0, 0}, Pattern(kLarge, 3), Event());
  EXPECT_TRUE(Await(b->Recv({2, 0, 0}, Room(kLarge))).ok());
}

TEST_P(EdgeContract, DropAfterTheEndLeavesNothing) {
  const auto a = Open(0, 1), b = Open(1, 0);
  a->Send({1, 0, 0}, Pattern(kSmall, 1), Event());
  const Event finished = a->Finish(1);
  EXPECT_TRUE(Await(b->Recv({1, 0, 0}, Room(kSmall))).ok());
  EXPECT_TRUE(Await(finished).ok());
  b->Drop(1);
  a->Drop(1);
  EndJob(*a, *b, 1);
  EXPECT_EQ(world_->live_jobs(0, 1), 0u);
  EXPECT_EQ(world_->live_jobs(1, 0), 0u);
}

TEST_P(EdgeContract, AWrongSizeFailsTheReceiveAndTheFinishButNotTheEdge) {
  const auto a = Open(0, 1), b = Open(1, 0);
  const Event small = a->Send({1, 0, 0}, Pattern(kSmall, 1), Event());
  const Event large = a->Send({1, 1, 0}, Pattern(kLarge, 1), Event());
  EXPECT_EQ(Code(b->Recv({1, 0, 0}, Room(kSmall + 1))), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Code(b->Recv({1, 1, 0}, Room(kLarge - 1))), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Code(small), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(Code(large), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Code(a->Finish(1)), absl::StatusCode::kInvalidArgument);
  a->Send({2, 0, 0}, Pattern(kLarge, 3), Event());
  EXPECT_TRUE(Await(b->Recv({2, 0, 0}, Room(kLarge))).ok());
  EXPECT_TRUE(Await(a->Finish(2)).ok());
  EXPECT_EQ(world_->live_jobs(0, 1), 0u);
}

TEST_P(EdgeContract, ARepeatedFrameIdIsRefused) {
  const auto a = Open(0, 1), b = Open(1, 0);
  a->Send({1, 0, 0}, Pattern(kSmall, 1), Event());
  EXPECT_EQ(Code(a->Send({1, 0, 0}, Pattern(kSmall, 1), Event())), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(Await(b->Recv({1, 0, 0}, Room(kSmall))).ok());
  EXPECT_EQ(Code(b->Recv({1, 0, 0}, Room(kSmall))), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(Await(a->Finish(1)).ok());
  EXPECT_EQ(Code(a->Send({1, 2, 0}, Pattern(kSmall, 1), Event())), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Await(a->Finish(1)).ok());
}

TEST_P(EdgeContract, FramesOfNoBytes) {
  const auto a = Open(0, 1), b = Open(1, 0);
  const Event early = a->Send({1, 0, 0}, BufferRef(), Event());
  EXPECT_TRUE(Await(b->Recv({1, 0, 0}, BufferRef())).ok());
  const Event got = b->Recv({1, 1, 0}, BufferRef());
  EXPECT_TRUE(Await(a->Send({1, 1, 0}, BufferRef(), Event())).ok());
  EXPECT_TRUE(Await(got).ok());
  EXPECT_TRUE(Await(early).ok());
  EXPECT_TRUE(Await(a->Finish(1)).ok());
}

TEST_P(EdgeContract, AFinishOfAnUnusedJobIsAnswered) {
  const auto a = Open(0, 1), b = Open(1, 0);
  EXPECT_TRUE(Await(a->Finish(9)).ok());
  EXPECT_TRUE(Await(b->Finish(9)).ok());
  EXPECT_EQ(world_->live_jobs(0, 1), 0u);
  EXPECT_EQ(world_->live_jobs(1, 0), 0u);
}

TEST_P(EdgeContract, FramesSentBeforeThePeerOpensItsSideWait) {
  const auto a = Open(0, 1);
  const Event small = a->Send({1, 0, 0}, Pattern(kSmall, 1), Event());
  const Event large = a->Send({1, 1, 0}, Pattern(kLarge, 2), Event());
  const Event finished = a->Finish(1);
  const auto b = Open(1, 0);
  BufferRef into = Room(kLarge);
  EXPECT_TRUE(Await(b->Recv({1, 1, 0}, into)).ok());
  EXPECT_EQ(Bytes(into), Bytes(Pattern(kLarge, 2)));
  EXPECT_TRUE(Await(b->Recv({1, 0, 0}, Room(kSmall))).ok());
  EXPECT_TRUE(Await(finished).ok());
}

TEST_P(EdgeContract, OpeningTwiceGivesTheSameEdge) {
  EXPECT_EQ(Open(0, 1), Open(0, 1));
}

TEST_P(EdgeContract, AKilledPeerFailsEverythingPending) {
  const auto a = Open(0, 1), b = Open(1, 0);
  a->Send({1, 0, 0}, Pattern(kSmall, 1), Event());
  ASSERT_TRUE(Await(b->Recv({1, 0, 0}, Room(kSmall))).ok());
  EventSource never;
  const Event announced = a->Send({1, 1, 0}, Pattern(kLarge, 1), Event());
  const Event held = a->Send({1, 2, 0}, Pattern(kLarge, 1), never.event());
  const Event wanted = a->Recv({1, 3, 0}, Room(kLarge));
  const Event finished = a->Finish(1);
  world_->Kill(1);
  // One that closes in order may still have discarded what was announced.
  EXPECT_NE(Code(announced), absl::StatusCode::kDeadlineExceeded);
  for (const Event& event : {held, wanted, finished}) {
    EXPECT_EQ(Code(event), absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(a->Health().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Code(a->Send({2, 0, 0}, Pattern(kSmall, 1), Event())), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Code(a->Recv({2, 0, 0}, Room(kSmall))), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Code(a->Finish(2)), absl::StatusCode::kUnavailable);
  EXPECT_EQ(world_->live_jobs(0, 1), 0u);
}

TEST_P(EdgeContract, CloseFreesBuffersAndFailsEverything) {
  const auto a = Open(0, 1), b = Open(1, 0), c = Open(2, 0), to_c = Open(0, 2);
  BufferRef bytes = Pattern(kLarge, 1);
  std::weak_ptr<Buffer> held = bytes.buffer;
  const Event announced = a->Send({1, 0, 0}, std::move(bytes), Event());
  bytes = {};
  // Once what follows it has come, no thread is on the way with it: large as well, to be summed on the same thread.
  a->Send({1, 1, 0}, Pattern(kLarge, 2), Event());
  ASSERT_TRUE(Await(b->Recv({1, 1, 0}, Room(kLarge))).ok());
  const PeerId peer = world_->factory(1).self();
  world_->factory(0).Close(peer);
  EXPECT_EQ(Code(announced), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(held.expired());
  EXPECT_EQ(a->Health().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(world_->factory(0).Open(peer).status().code(), absl::StatusCode::kUnavailable);
  // The other edge lives on.
  c->Send({1, 0, 0}, Pattern(kLarge, 1), Event());
  EXPECT_TRUE(Await(to_c->Recv({1, 0, 0}, Room(kLarge))).ok());
  EXPECT_TRUE(to_c->Health().ok());
}

TEST_P(EdgeContract, ManyJobsLeaveNoState) {
  const auto a = Open(0, 1), b = Open(1, 0);
  for (JobId job = 1; job <= 200; ++job) {
    const size_t bytes = job % 3 == 0 ? kLarge : job % 3 == 1 ? kSmall : 0;
    BufferRef into = Room(bytes);
    const Event got = job % 2 ? b->Recv({job, 0, 0}, into) : Event();
    const Event sent = a->Send({job, 0, 0}, Pattern(bytes, job), Event());
    const Event late = job % 2 ? got : b->Recv({job, 0, 0}, into);
    const Event finished = a->Finish(job);
    ASSERT_TRUE(Await(late).ok());
    ASSERT_EQ(Bytes(into), Bytes(Pattern(bytes, job)));
    ASSERT_TRUE(Await(sent).ok());
    ASSERT_TRUE(Await(finished).ok());
  }
  EXPECT_EQ(world_->live_jobs(0, 1), 0u);
  EXPECT_EQ(world_->live_jobs(1, 0), 0u);
}

}  // namespace runahead::testing
