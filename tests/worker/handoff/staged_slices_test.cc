// Hand-off from a device whose memory the host cannot read: through pinned memory to other processes, straight into the
// process's own store.
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/patience.h"
#include "tests/testing/remote_device.h"
#include "tests/worker/handoff/handoff_contract.h"
#include "tests/worker/link/new_engine.h"
#include "worker/handoff/in_process_handoff.h"
#include "worker/handoff/message_handoff.h"
#include "worker/handoff/slice_sender.h"

namespace runahead {
namespace {

using ::runahead::testing::HandoffContract;
using ::runahead::testing::HandoffWorld;
using ::runahead::testing::kRowBytes;
using ::runahead::testing::NewEngine;
using ::runahead::testing::Pattern;
using ::runahead::testing::RemoteDevice;

// Each sender with a lane of its own.
class StagedWorld final : public HandoffWorld {
 public:
  StagedWorld(size_t staging_bytes, bool in_process) : slices_(*store, {.on_corrupt = [this] { ++corrupt; }}) {
    if (!in_process) {
      decode_ = testing::HoldingVerdicts(NewEngine(), receiving);
      receiver_ = std::make_unique<MessageHandoffReceiver>(*decode_, slices_);
    }
    for (int i = 0; i < 3; ++i) {
      lanes_[i] = StagingLane::Create(gpu, "handoff", staging_bytes);
      std::shared_ptr<SliceTransport> transport;
      if (in_process) {
        transport = testing::WithFaults(MakeInProcessTransport(slices_), &sending, &receiving);
      } else {
        engines_[i] = NewEngine();
        transport = testing::WithFaults(MakeMessageSliceTransport(*engines_[i]), &sending);
      }
      senders_[i] = std::make_unique<SliceSender>(
          std::move(transport), HandoffSenderOptions{.on_retry = [this] { ++retries; }, .lane = lanes_[i]});
    }
  }
  ~StagedWorld() override {
    Stop();
    receiver_.reset();
    for (const auto& lane : lanes_) lane->Stop();
  }
  HandoffSender& sender(int process) override { return *senders_[process]; }
  PeerId decode() const override { return decode_ == nullptr ? PeerId{"here", 77} : decode_->self(); }
  void Stop() {
    for (auto& sender : senders_) sender.reset();
  }

  RemoteDevice gpu;

 private:
  SliceReceiver slices_;
  std::unique_ptr<MessageEngine> decode_, engines_[3];
  std::unique_ptr<MessageHandoffReceiver> receiver_;
  std::shared_ptr<StagingLane> lanes_[3];
  std::unique_ptr<SliceSender> senders_[3];
};

auto Staged(size_t staging_bytes, bool in_process) {
  return ::testing::Values([=] { return std::unique_ptr<HandoffWorld>(new StagedWorld(staging_bytes, in_process)); });
}

// Slices of plain memory: what is read by the host and what by the device is the next test's business.
INSTANTIATE_TEST_SUITE_P(Staged, HandoffContract, Staged(1 << 20, /*in_process=*/false));
INSTANTIATE_TEST_SUITE_P(OneChunk, HandoffContract, Staged(1, /*in_process=*/false));
INSTANTIATE_TEST_SUITE_P(FromDeviceInProcess, HandoffContract, Staged(1 << 20, /*in_process=*/true));

class StagedSlices : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr int64_t kTokens = 100;
  static constexpr size_t kSlice = kTokens * kRowBytes;
  static constexpr size_t kStaging = 2 * kSlice;

  static absl::StatusCode Code(const Event& event) { return event.Wait(testing::LongestWait()).code(); }
  Event Push(const LeaseId& lease, int32_t layer, int64_t begin, const Event& after = Event()) {
    return world_.sender(0).Push(world_.decode(), {lease, layer, begin, begin + kTokens},
                                 world_.gpu.Holding(Pattern(kSlice, layer * 1000 + begin)), after);
  }

  StagedWorld world_{kStaging, /*in_process=*/GetParam()};
};

TEST_P(StagedSlices, ComeWholeThroughBoundedMemory) {
  const LeaseId lease = *world_.store->Reserve({.prompt_tokens = 10 * kTokens, .total_tokens = 10 * kTokens});
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
  EXPECT_LE(world_.gpu.host_bytes(), 3 * kStaging) << "of three senders";
}

TEST_P(StagedSlices, CancelMeansWhatIsNotOnTheWire) {
  const LeaseId lease = *world_.store->Reserve({.prompt_tokens = 10 * kTokens, .total_tokens = 10 * kTokens});
  const LeaseId other = *world_.store->Reserve({.prompt_tokens = kTokens, .total_tokens = kTokens});
  world_.receiving.HoldVerdicts();
  EventSource computed;
  const Event sent[] = {Push(lease, 0, 0), Push(lease, 0, kTokens)};
  std::vector<Event> waiting;
  for (int64_t part = 2; part < 6; ++part) waiting.push_back(Push(lease, 0, part * kTokens, computed.event()));
  const Event unharmed = Push(other, 0, 0);
  world_.receiving.AwaitHeld(3);
  const int copies = world_.gpu.copies();
  world_.sender(0).Cancel(lease);
  for (const Event& event : waiting) EXPECT_EQ(Code(event), absl::StatusCode::kCancelled);
  computed.Fire(absl::OkStatus());
  EXPECT_FALSE(sent[0].fired()) << "it is on the wire";
  world_.receiving.ReleaseVerdicts();
  for (const Event& event : {sent[0], sent[1], unharmed}) EXPECT_EQ(Code(event), absl::StatusCode::kOk);
  EXPECT_EQ(world_.gpu.copies(), copies);
}

TEST_P(StagedSlices, TheEndCancelsWhatWaitsAndAwaitsCopies) {
  const LeaseId lease = *world_.store->Reserve({.prompt_tokens = 10 * kTokens, .total_tokens = 10 * kTokens});
  EventSource gate, never;
  world_.gpu.HoldCopies(gate.event());
  std::vector<Event> pushed;
  for (int64_t part = 0; part < 6; ++part) pushed.push_back(Push(lease, 0, part * kTokens));
  pushed.push_back(Push(lease, 0, 6 * kTokens, never.event()));
  world_.gpu.AwaitCopyEnqueued();
  std::thread stopping([&] { world_.Stop(); });
  EXPECT_EQ(Code(pushed.back()), absl::StatusCode::kCancelled);
  gate.Fire(absl::OkStatus());
  stopping.join();
  for (const Event& event : pushed) EXPECT_TRUE(event.fired());
  never.Fire(absl::OkStatus());  // too late to matter
}

// Neither pinned memory nor plain. What goes over the same connection meanwhile goes on.
TEST(StagedSlicesWithoutMemory, TheSliceFailsAndTheConnectionLives) {
  constexpr size_t kNoMachineHas = size_t{1} << 50;
  StagedWorld world(/*staging_bytes=*/1024, /*in_process=*/false);
  const LeaseId lease = *world.store->Reserve({.prompt_tokens = 20, .total_tokens = 20});
  const auto engine = NewEngine();
  RemoteDevice poor;
  poor.RefuseHostMemory(true);
  const auto lane = StagingLane::Create(poor, "handoff", kNoMachineHas);
  const auto transport = MakeMessageSliceTransport(*engine);
  {
    SliceSender from_host(transport), from_device(transport, {.on_retry = {}, .lane = lane});
    world.receiving.HoldVerdicts();
    const Event held = from_host.Push(world.decode(), {lease, 0, 0, 10}, Pattern(10 * kRowBytes, 1), Event());
    world.receiving.AwaitHeld(1);
    for (int attempt = 0; attempt < 2; ++attempt) {
      const BufferRef rows = poor.Holding(Pattern(10 * kRowBytes, 2));
      const Event failed = from_device.Push(world.decode(), {lease, 0, 10, 20}, rows, Event());
      const absl::Status why = failed.Wait(testing::LongestWait());
      EXPECT_EQ(why.code(), absl::StatusCode::kResourceExhausted);
      EXPECT_THAT(std::string(why.message()), ::testing::HasSubstr("no memory to bring it out of the device"));
    }
    EXPECT_FALSE(held.fired());
    world.receiving.ReleaseVerdicts();
    EXPECT_EQ(held.Wait(testing::LongestWait()).code(), absl::StatusCode::kOk);
    // Whether a decode worker can be reached is asked with a slice without bytes: it answers that this is no range.
    const Event asked = from_device.Push(world.decode(), Slice{}, {}, Event());
    EXPECT_EQ(asked.Wait(testing::LongestWait()).code(), absl::StatusCode::kOutOfRange);
  }
  lane->Stop();
}

INSTANTIATE_TEST_SUITE_P(Ways, StagedSlices, ::testing::Bool(),
                         [](const auto& in_process) { return in_process.param ? "InProcess" : "Tcp"; });

}  // namespace
}  // namespace runahead
