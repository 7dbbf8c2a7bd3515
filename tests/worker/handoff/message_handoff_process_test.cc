// Hand-off between real processes, and what their violent death does.
#include <sched.h>

#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/clock.h"
#include "tests/testing/await.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/fake_device.h"
#include "tests/worker/link/host_buffer.h"
#include "tests/worker/link/new_engine.h"
#include "tests/worker/link/peer_process.h"
#include "worker/handoff/message_handoff.h"

namespace runahead {
namespace {

using ::runahead::testing::FakeClock;
using ::runahead::testing::FakeDevice;
using ::runahead::testing::FromArgument;
using ::runahead::testing::NewEngine;
using ::runahead::testing::Pattern;
using ::runahead::testing::PeerProcess;
using ::runahead::testing::ToArgument;

constexpr int64_t kTokens = 16384;
constexpr int64_t kPeerRowBytes = 4096;  // as in message_handoff_peer

// A decode worker's side in this process, with a lease for one prompt.
struct Receiving {
  Receiving(MessageEngine& engine, Clock& clock)
      : store(*KvStore::Create({2, kPeerRowBytes, kTokens, engine.self().incarnation}, device, clock)),
        slices(*store, {}),
        receiver(engine, slices),
        lease(*store->Reserve({.prompt_tokens = kTokens, .total_tokens = kTokens})) {}

  FakeDevice device;
  const std::unique_ptr<KvStore> store;
  SliceReceiver slices;
  MessageHandoffReceiver receiver;
  const LeaseId lease;
};

class MessageHandoffProcess : public ::testing::Test {
 protected:
  // A killed peer is noticed, within whatever time a busy machine takes for it.
  static absl::StatusCode Soon(const Event& event) { return event.Wait(absl::Seconds(10)).code(); }
  static std::unique_ptr<PeerProcess> Peer(std::vector<std::string> arguments) {
    return std::make_unique<PeerProcess>("worker_handoff_message_handoff_peer", std::move(arguments));
  }
  // A process that pushes to `at`, when the first bytes of its first slice have come.
  std::unique_ptr<PeerProcess> SenderInMidSlice(Receiving& at) {
    const volatile std::byte* first = at.store->BeginWrite(at.lease, 0, 0, 1)->destination()[0].data();
    const std::byte before = *first;
    auto sender = Peer({"send", std::to_string(kTokens), ToArgument(engine_->self()),
                        std::to_string(at.lease.incarnation), std::to_string(at.lease.number)});
    EXPECT_EQ(sender->ReadLine(), "pushing");
    while (*first == before) sched_yield();
    return sender;
  }
  std::unique_ptr<MessageEngine> engine_ = NewEngine();
};

TEST_F(MessageHandoffProcess, AKilledDecodeWorkerMakesEveryPushUnavailable) {
  auto decode = Peer({"decode", std::to_string(kTokens)});
  std::istringstream line(decode->ReadLine());
  std::string id;
  LeaseId lease;
  line >> id >> lease.incarnation >> lease.number;
  SliceSender sender(MakeMessageSliceTransport(*engine_));
  const BufferRef rows = Pattern(kTokens * kPeerRowBytes, 1);
  std::vector<Event> pushed;
  for (int32_t layer = 0; layer < 2; ++layer) {
    for (int64_t begin = 0; begin < kTokens; begin += kTokens / 8) {
      const int64_t end = begin + kTokens / 8;
      pushed.push_back(sender.Push(FromArgument(id), {lease, layer, begin, end},
                                   rows.Slice(begin * kPeerRowBytes, (end - begin) * kPeerRowBytes), Event()));
    }
  }
  // The peer answers nothing.
  for (const Event& event : pushed) ASSERT_FALSE(event.fired());
  decode->Kill();
  for (const Event& event : pushed) EXPECT_EQ(Soon(event), absl::StatusCode::kUnavailable);
}

TEST_F(MessageHandoffProcess, ASenderKilledInMidTransferUnpinsTheLease) {
  Receiving at(*engine_, RealClock());
  const auto sender = SenderInMidSlice(at);
  sender->Kill();
  const Event complete = at.store->Complete(at.lease);
  at.store->Release(at.lease);
  EXPECT_EQ(Soon(complete), absl::StatusCode::kCancelled);
  EXPECT_TRUE(testing::Await("the lease's memory is free", [&] { return at.store->stats().used_bytes == 0; }));
}

TEST_F(MessageHandoffProcess, ALeaseOutlivesItsTimeWhileASlowSendersBytesAreUnderWay) {
  FakeClock clock;
  Receiving at(*engine_, clock);
  const auto sender = SenderInMidSlice(at);
  sender->Stop();
  clock.Advance(10 * kLeaseLife);
  EXPECT_EQ(at.store->ReapExpired(), 0);
  sender->Continue();
  EXPECT_EQ(sender->ReadLine(), "OK");
  clock.Advance(kLeaseLife);
  EXPECT_EQ(at.store->Renew(at.lease), absl::OkStatus()) << "its time begins anew when the bytes are in";
}

}  // namespace
}  // namespace runahead
