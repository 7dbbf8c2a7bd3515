#include "kernels/cuda/nccl_peer_comm.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_nccl.h"
#include "tests/testing/patience.h"
#include "tests/worker/link/host_buffer.h"

namespace runahead {
namespace {

using ::runahead::testing::Bytes;
using ::runahead::testing::FakeNccl;
using ::runahead::testing::Pattern;
using ::runahead::testing::Room;
using ::testing::HasSubstr;

class NcclPeerCommTest : public ::testing::Test {
 protected:
  static constexpr size_t kBytes = 1000;

  explicit NcclPeerCommTest(const NcclTimes& times = {}) {
    auto api = std::make_unique<FakeNccl>();
    nccl_ = api.get();
    factory_ = std::make_unique<NcclPeerCommFactory>(std::move(api), "8f3a", times);
    id_ = *factory_->NewId();
  }
  std::unique_ptr<PeerComm> Open(PeerRank rank) { return *factory_->Open(id_, rank); }
  // Both ranks, ready.
  void OpenBoth() {
    from_ = Open(PeerRank::kSender);
    to_ = Open(PeerRank::kReceiver);
    ASSERT_TRUE(Await(from_->ready()).ok());
    ASSERT_TRUE(Await(to_->ready()).ok());
  }
  static absl::Status Await(const Event& event) { return event.Wait(testing::LongestWait()); }
  static absl::StatusCode Code(const Event& event) { return Await(event).code(); }

  FakeNccl* nccl_ = nullptr;
  std::unique_ptr<NcclPeerCommFactory> factory_;
  std::string id_;
  std::unique_ptr<PeerComm> from_, to_;
};

// Deadlines that pass soon: for joining, and for what comes later.
class NcclPeerCommJoining : public NcclPeerCommTest {
 protected:
  NcclPeerCommJoining() : NcclPeerCommTest({.ready = absl::Milliseconds(30)}) {}
};
class NcclPeerCommDeadlines : public NcclPeerCommTest {
 protected:
  NcclPeerCommDeadlines() : NcclPeerCommTest({.enqueue = absl::Milliseconds(30), .move = absl::Milliseconds(30)}) {}
};

TEST_F(NcclPeerCommTest, SaysWhatItIs) {
  EXPECT_EQ(factory_->identity(), "nccl 2.27.7 GPU-1 host 8f3a");
}

TEST_F(NcclPeerCommTest, TransfersArriveInOrder) {
  OpenBoth();
  std::vector<BufferRef> into;
  std::vector<Event> all;
  for (int i = 0; i < 50; ++i) {
    into.push_back(Room(kBytes + i));
    all.push_back(to_->Recv(into.back(), nullptr));
    all.push_back(from_->Send(Pattern(kBytes + i, i), nullptr));
  }
  for (const Event& event : all) EXPECT_TRUE(Await(event).ok());
  for (int i = 0; i < 50; ++i) EXPECT_EQ(Bytes(into[i]), Bytes(Pattern(kBytes + i, i)));
  EXPECT_TRUE(from_->Health().ok());
  from_.reset();
  to_.reset();
  EXPECT_EQ(nccl_->count("abort"), 2);
}

// More than there are places for sums at once.
TEST_F(NcclPeerCommTest, SumsAreOfTheBytesThatWereSentAndThatCame) {
  OpenBoth();
  constexpr int kTransfers = 40;
  std::vector<std::shared_ptr<uint64_t>> sent, come;
  std::vector<Event> all;
  for (int i = 0; i < kTransfers; ++i) {
    for (auto* const sums : {&sent, &come}) sums->push_back(std::make_shared<uint64_t>(0));
    all.push_back(to_->Recv(Room(kBytes), come.back()));
    all.push_back(from_->Send(Pattern(kBytes, i / 2), sent.back()));
  }
  for (const Event& event : all) EXPECT_TRUE(Await(event).ok());
  for (int i = 0; i < kTransfers; ++i) {
    EXPECT_NE(*sent[i], 0u);
    EXPECT_EQ(*sent[i], *come[i]);
    EXPECT_EQ(*sent[i], *sent[i - i % 2]) << "equal bytes";
    EXPECT_NE(*sent[i], *sent[(i + 2) % kTransfers]) << "other bytes";
  }
}

TEST_F(NcclPeerCommTest, WhatIsEnqueuedBeforeThePeerJoinsWaitsBehindTheFirstByte) {
  nccl_->Set({.hold_init = true});
  from_ = Open(PeerRank::kSender);
  const Event sent = from_->Send(Pattern(kBytes, 1), nullptr);
  to_ = Open(PeerRank::kReceiver);
  const BufferRef into = Room(kBytes);
  const Event got = to_->Recv(into, nullptr);
  nccl_->Await("init", 2);
  EXPECT_FALSE(from_->ready().fired());
  EXPECT_EQ(nccl_->count("send 1000"), 0);
  nccl_->Set({});
  EXPECT_TRUE(Await(sent).ok());
  EXPECT_TRUE(Await(got).ok());
  EXPECT_EQ(Bytes(into), Bytes(Pattern(kBytes, 1)));
  EXPECT_EQ(nccl_->count("send 256"), 1) << "the kernel was loaded before the first frame";
}

TEST_F(NcclPeerCommTest, NothingIsAskedOfNcclForNoBytesOrTheWrongRank) {
  OpenBoth();
  EXPECT_TRUE(Await(from_->Send(BufferRef(), nullptr)).ok());
  EXPECT_EQ(Code(from_->Recv(Room(kBytes), nullptr)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(factory_->Open("short", PeerRank::kSender).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(from_->Health().ok());
}

TEST_F(NcclPeerCommJoining, APeerThatDoesNotJoinIsUnavailable) {
  from_ = Open(PeerRank::kSender);
  const Event sent = from_->Send(Pattern(kBytes, 1), nullptr);
  EXPECT_EQ(Code(from_->ready()), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(Await(from_->ready()).message()), HasSubstr("to join"));
  EXPECT_EQ(Code(sent), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Code(from_->Send(Pattern(kBytes, 1), nullptr)), absl::StatusCode::kUnavailable);
  EXPECT_EQ(from_->Health().code(), absl::StatusCode::kUnavailable);
  from_.reset();
  EXPECT_EQ(nccl_->count("abort"), 1);
}

TEST_F(NcclPeerCommJoining, AFirstByteThatDoesNotComeIsUnavailable) {
  nccl_->Set({.hold_transfers = true});
  from_ = Open(PeerRank::kSender);
  to_ = Open(PeerRank::kReceiver);
  EXPECT_EQ(Code(from_->ready()), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Code(to_->ready()), absl::StatusCode::kUnavailable);
  from_.reset();
  to_.reset();
  EXPECT_EQ(nccl_->count("abort"), 2);
}

TEST_F(NcclPeerCommDeadlines, ATransferThatDoesNotGetIntoTheStreamEndsTheCommunicator) {
  OpenBoth();
  nccl_->Set({.hold_enqueue = true});
  EXPECT_EQ(Code(from_->Send(Pattern(kBytes, 1), nullptr)), absl::StatusCode::kUnavailable);
  EXPECT_EQ(from_->Health().code(), absl::StatusCode::kUnavailable);
}

TEST_F(NcclPeerCommDeadlines, ATransferThatDoesNotEndEndsTheCommunicator) {
  OpenBoth();
  nccl_->Set({.hold_transfers = true});
  const Event sent = from_->Send(Pattern(kBytes, 1), nullptr);
  EXPECT_EQ(Code(sent), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(Await(sent).message()), HasSubstr("does not come to its end"));
  EXPECT_EQ(from_->Health().code(), absl::StatusCode::kUnavailable);
}

TEST_F(NcclPeerCommDeadlines, ATransferThatGetsIntoTheStreamTooLateHasItsBufferUntilItEnds) {
  OpenBoth();
  nccl_->Set({.late_enqueue = true});
  BufferRef into = Room(kBytes);
  const std::weak_ptr<Buffer> held = into.buffer;
  bool kept = true;
  const Event got = to_->Recv(std::move(into), nullptr);
  into = {};
  // The stream's end checks that nothing runs in it any more.
  EventSource told;
  got.OnFire([&](const absl::Status&) {
    kept = !held.expired();
    told.Fire(absl::OkStatus());
  });
  EXPECT_EQ(Code(got), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(Await(told.event()).ok());
  EXPECT_FALSE(kept);
}

// Two communicators of GPU 1, and their peers, each on its own. A peer that dies says nothing.
class NcclPeerCommsOfOneGpu : public NcclPeerCommTest {
 protected:
  explicit NcclPeerCommsOfOneGpu(const NcclTimes& times = {}) : NcclPeerCommTest(times) {
    back_id_ = *factory_->NewId();
    nccl_->Place(id_, PeerRank::kSender, 1);
    nccl_->Place(back_id_, PeerRank::kReceiver, 1);
    OpenBoth();
    back_to_ = *factory_->Open(back_id_, PeerRank::kReceiver);
    back_from_ = *factory_->Open(back_id_, PeerRank::kSender);
    EXPECT_TRUE(Await(back_to_->ready()).ok());
    EXPECT_TRUE(Await(back_from_->ready()).ok());
    nccl_->Set({.hold_transfers = true});
    sent_ = from_->Send(Pattern(kBytes, 1), nullptr);
    got_ = back_to_->Recv(Room(kBytes), nullptr);
    nccl_->Await("mark", 6);  // those two after the first bytes of all four
    nccl_->AddStreamThatWaits(1, sent_);
    nccl_->AddStreamThatWaits(1, got_);
  }

  std::string back_id_;
  std::unique_ptr<PeerComm> back_to_, back_from_;
  Event sent_, got_;
};
class NcclPeerCommsWithDeadlines : public NcclPeerCommsOfOneGpu {
 protected:
  NcclPeerCommsWithDeadlines() : NcclPeerCommsOfOneGpu({.move = absl::Milliseconds(50)}) {}
};

TEST_F(NcclPeerCommsOfOneGpu, BothEndWhenTheyAreStoppedBeforeEither) {
  from_->Stop();
  back_to_->Stop();
  from_.reset();
  back_to_.reset();
  EXPECT_EQ(Code(sent_), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Code(got_), absl::StatusCode::kUnavailable);
}

TEST_F(NcclPeerCommsOfOneGpu, EventsFireWhileFreeingWaitsForWhatTheOtherHasUnderWay) {
  from_->Stop();
  EXPECT_EQ(Code(sent_), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(got_.fired());
  nccl_->Await("abort", 1);
  back_to_->Stop();
  EXPECT_EQ(Code(got_), absl::StatusCode::kUnavailable);
  from_.reset();
}

TEST_F(NcclPeerCommsWithDeadlines, WithoutBeingToldTheyEndByTheirDeadlines) {
  EXPECT_EQ(Code(sent_), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Code(got_), absl::StatusCode::kUnavailable);
  from_.reset();
  back_to_.reset();
  EXPECT_EQ(nccl_->count("abort"), 2);
}

TEST_F(NcclPeerCommTest, WhateverFailsOnTheWayIsWhyItIsNotReady) {
  const std::vector<std::pair<FakeNccl::Faults, std::string>> faults = {
      {{.fail_init = true}, "init failed"},     {{.fail_joining = true}, "the peer refused"},
      {{.fail_thread = true}, "thread failed"}, {{.fail_stream = true}, "stream failed"},
      {{.fail_mark = true}, "mark failed"},     {{.fail_scratch = true}, "scratch failed"},
      {{.fail_send = true}, "send 256 failed"}};
  for (const auto& [fault, why] : faults) {
    id_ = *factory_->NewId();
    nccl_->Set(fault);
    from_ = Open(PeerRank::kSender);
    to_ = Open(PeerRank::kReceiver);
    const Event sent = from_->Send(Pattern(kBytes, 1), nullptr);
    EXPECT_EQ(Code(from_->ready()), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(Await(from_->ready()).message()), HasSubstr(why));
    EXPECT_EQ(Code(sent), absl::StatusCode::kUnavailable);
    from_.reset();
    to_.reset();
  }
}

TEST_F(NcclPeerCommTest, AnErrorWhileATransferIsUnderWayAbortsFirstAndTellsThen) {
  OpenBoth();
  nccl_->Set({.hold_transfers = true});
  BufferRef bytes = Pattern(kBytes, 1);
  const std::weak_ptr<Buffer> held = bytes.buffer;
  const Event sent = from_->Send(std::move(bytes), nullptr);
  bytes = {};
  int aborted = 0;
  bool freed = false;
  EventSource told;
  sent.OnFire([&, this](const absl::Status&) {
    aborted = nccl_->count("abort");
    freed = held.expired();
    told.Fire(absl::OkStatus());
  });
  nccl_->Await("send 1000", 1);
  nccl_->FailAll();
  EXPECT_EQ(Code(sent), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(Await(sent).message()), HasSubstr("the network broke"));
  ASSERT_TRUE(Await(told.event()).ok());
  EXPECT_GE(aborted, 1);
  EXPECT_TRUE(freed);
  EXPECT_EQ(Code(from_->Send(Pattern(kBytes, 1), nullptr)), absl::StatusCode::kUnavailable);
}

TEST_F(NcclPeerCommTest, AnErrorWhileIdleIsSeenByHealth) {
  OpenBoth();
  nccl_->FailAll();
  nccl_->Await("abort", 2);
  for (const auto* comm : {&from_, &to_}) {
    EXPECT_THAT(std::string((*comm)->Health().message()), HasSubstr("the network broke"));
  }
}

TEST_F(NcclPeerCommTest, EndingItAbortsWhatIsUnderWayAndWaitsForNobody) {
  OpenBoth();
  nccl_->Set({.hold_transfers = true});
  std::vector<Event> all;
  for (int i = 0; i < 40; ++i) all.push_back(from_->Send(Pattern(kBytes, i), nullptr));  // some not in the stream yet
  nccl_->Await("send 1000", 3);
  from_.reset();
  for (const Event& event : all) {
    ASSERT_TRUE(event.fired());
    EXPECT_EQ(Code(event), absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(nccl_->count("abort"), 1);
}

class NcclPeerCommDeathTest : public NcclPeerCommTest {
 protected:
  static constexpr absl::Duration kSoon = absl::Milliseconds(30);
  NcclPeerCommDeathTest() : NcclPeerCommTest({.end = kSoon, .leave = kSoon, .abort = kSoon}) {}
  void SendAndEnd(const FakeNccl::Faults& faults, const std::string& until, int count) {
    OpenBoth();
    nccl_->Set(faults);
    const Event sent = from_->Send(Pattern(kBytes, 1), nullptr);
    nccl_->Await(until, count);
    from_.reset();
  }
};

TEST_F(NcclPeerCommDeathTest, KernelsThatDoNotEndEndTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(SendAndEnd({.hold_transfers = true, .hold_kernels = true}, "mark", 3), "NCCL may still touch memory");
}

TEST_F(NcclPeerCommDeathTest, ATransferThatMayStillBeginEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(SendAndEnd({.hold_enqueue = true, .hold_abort = true}, "send 1000", 1), "NCCL may still touch memory");
}

// It waits for processes of its host, which may be stopped.
class NcclPeerCommLeaving : public NcclPeerCommTest {
 protected:
  NcclPeerCommLeaving() : NcclPeerCommTest({.end = absl::Seconds(60), .leave = absl::Milliseconds(30)}) {}
};

TEST_F(NcclPeerCommLeaving, NcclThatDoesNotGiveItUpIsLeftAloneWithIt) {
  OpenBoth();
  nccl_->Set({.hold_transfers = true, .hold_abort = true});
  BufferRef bytes = Pattern(kBytes, 1);
  const std::weak_ptr<Buffer> held = bytes.buffer;
  const Event sent = from_->Send(std::move(bytes), nullptr);
  bytes = {};
  nccl_->Await("mark", 3);  // that of this one
  from_.reset();
  EXPECT_EQ(Code(sent), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(held.expired());
  to_.reset();
  factory_.reset();
  nccl_->Set({});  // it is there still, for NCCL may come back
  nccl_->Await("aborted", 2);
}

TEST_F(NcclPeerCommTest, EndingItWhileThePeerJoinsAbortsIt) {
  from_ = Open(PeerRank::kSender);
  const Event ready = from_->ready();
  const Event sent = from_->Send(Pattern(kBytes, 1), nullptr);
  nccl_->Await("init", 1);
  from_.reset();
  EXPECT_TRUE(ready.fired());
  EXPECT_EQ(Code(ready), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Code(sent), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace runahead
