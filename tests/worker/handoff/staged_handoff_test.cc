#include "worker/handoff/staged_handoff.h"

#include <cstring>

#include "tests/testing/remote_device.h"
#include "tests/worker/handoff/handoff_contract.h"
#include "tests/worker/kv/sequence_rows.h"
#include "worker/handoff/in_process_handoff.h"

namespace runahead {
namespace {

using ::runahead::testing::HandoffContract;
using ::runahead::testing::HandoffWorld;
using ::runahead::testing::kRowBytes;
using ::runahead::testing::Pattern;
using ::runahead::testing::RemoteDevice;

class StagedWorld final : public HandoffWorld {
 public:
  explicit StagedWorld(size_t staging_bytes) : receiver_(*store, {RowForm::kF32, [this] { ++corrupt; }, &receiving}) {
    for (auto& sender : senders_) {
      auto inner = std::make_unique<RetryingSender>(MakeInProcessTransport(receiver_),
                                                    HandoffSenderOptions{[this] { ++retries; }, &sending});
      sender = std::make_unique<StagedHandoff>(std::move(inner), gpu, staging_bytes);
    }
  }
  HandoffSender& sender(int process) override { return *senders_[process]; }
  PeerId decode() const override { return {"here", 77}; }
  void Stop() {
    for (auto& sender : senders_) sender.reset();
  }

  RemoteDevice gpu;

 private:
  SliceReceiver receiver_;
  std::unique_ptr<StagedHandoff> senders_[3];
};

// Slices of plain memory: what is read by the host and what by the device is the next test's business.
INSTANTIATE_TEST_SUITE_P(Staged, HandoffContract,
                         ::testing::Values([] { return std::unique_ptr<HandoffWorld>(new StagedWorld(1 << 20)); }));
INSTANTIATE_TEST_SUITE_P(NoRoom, HandoffContract,
                         ::testing::Values([] { return std::unique_ptr<HandoffWorld>(new StagedWorld(1)); }));

class StagedHandoffTest : public ::testing::Test {
 protected:
  static constexpr int64_t kTokens = 100;
  static constexpr size_t kSlice = kTokens * kRowBytes;
  static constexpr size_t kStaging = 2 * kSlice;

  static absl::StatusCode Code(const Event& event) { return event.Wait(absl::Seconds(60)).code(); }
  Event Push(const LeaseId& lease, int32_t layer, int64_t begin, const Event& after = Event()) {
    return world_.sender(0).Push(world_.decode(), {lease, layer, begin, begin + kTokens},
                                 world_.gpu.Holding(Pattern(kSlice, layer * 1000 + begin)), after);
  }

  StagedWorld world_{kStaging};
};

TEST_F(StagedHandoffTest, SlicesComeWholeThroughBoundedMemory) {
  const LeaseId lease = *world_.store->Reserve(10 * kTokens, 10 * kTokens);
  std::vector<Event> pushed;
  for (int32_t layer = 0; layer < testing::kLayers; ++layer) {
    for (int64_t part = 0; part < 10; ++part) pushed.push_back(Push(lease, layer, part * kTokens));
  }
  for (const Event& event : pushed) EXPECT_EQ(Code(event), absl::StatusCode::kOk);
  const auto sequence = world_.store->Open(lease);
  ASSERT_TRUE(sequence.ok());
  for (int32_t layer = 0; layer < testing::kLayers; ++layer) {
    std::string rows, expected;
    for (const KvSpan& span : SpansOf(*world_.store, *sequence, layer)) rows += testing::Bytes(span.rows);
    for (int64_t part = 0; part < 10; ++part) {
      expected += testing::Bytes(Pattern(kSlice, layer * 1000 + part * kTokens));
    }
    EXPECT_EQ(rows.substr(0, expected.size()), expected);
  }
  EXPECT_EQ(world_.gpu.copies(), 20);
  EXPECT_LE(world_.gpu.host_bytes(), 3 * kStaging) << "of three senders";
}

TEST_F(StagedHandoffTest, CancelMeansWhatWaitsForRoomToo) {
  const LeaseId lease = *world_.store->Reserve(10 * kTokens, 10 * kTokens);
  const LeaseId other = *world_.store->Reserve(kTokens, kTokens);
  world_.receiving.HoldVerdicts();
  std::vector<Event> pushed;
  for (int64_t part = 0; part < 6; ++part) pushed.push_back(Push(lease, 0, part * kTokens));
  const Event unharmed = Push(other, 0, 0);
  world_.receiving.AwaitHeld(2);  // they have all the room
  world_.sender(0).Cancel(lease);
  for (int i = 2; i < 6; ++i) EXPECT_EQ(Code(pushed[i]), absl::StatusCode::kCancelled);
  EXPECT_FALSE(pushed[0].fired()) << "it is on the wire";
  world_.receiving.ReleaseVerdicts();
  EXPECT_EQ(Code(pushed[0]), absl::StatusCode::kOk);
  EXPECT_EQ(Code(pushed[1]), absl::StatusCode::kOk);
  EXPECT_EQ(Code(unharmed), absl::StatusCode::kOk);
  EXPECT_EQ(world_.gpu.copies(), 3);
}

TEST_F(StagedHandoffTest, TheEndCancelsWhatWaitsAndAwaitsCopies) {
  const LeaseId lease = *world_.store->Reserve(10 * kTokens, 10 * kTokens);
  EventSource gate, never;
  world_.gpu.HoldCopies(gate.event());
  std::vector<Event> pushed;
  for (int64_t part = 0; part < 6; ++part) pushed.push_back(Push(lease, 0, part * kTokens));
  pushed.push_back(Push(lease, 0, 6 * kTokens, never.event()));
  std::thread stopping([&] { world_.Stop(); });
  EXPECT_EQ(Code(pushed.back()), absl::StatusCode::kCancelled);
  gate.Fire(absl::OkStatus());
  stopping.join();
  for (const Event& event : pushed) EXPECT_TRUE(event.fired());
  never.Fire(absl::OkStatus());  // too late to matter
}

}  // namespace
}  // namespace runahead
