// What every way of handing off must do. A test file instantiates HandoffContract with a maker of its world.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/handoff_faults.h"
#include "tests/testing/patience.h"
#include "tests/worker/kv/failing_device.h"
#include "tests/worker/kv/sequence_rows.h"
#include "tests/worker/link/host_buffer.h"
#include "worker/handoff/handoff.h"
#include "worker/handoff/slice_receiver.h"
#include "worker/kv/store.h"

namespace runahead::testing {

inline constexpr int64_t kLayers = 2;
inline constexpr int64_t kRowBytes = 64;
inline constexpr int64_t kXRowBytes = 40;

// A decode worker's store, which keeps X where it is in host memory, and three senders to it. The host cannot touch the
// device's memory: where `tier` is kDevice, slices pass through a bounce buffer of one layer of the store.
class HandoffWorld {
 public:
  explicit HandoffWorld(MemoryKind tier = MemoryKind::kHost)
      : store(*KvStore::Create({.layers = kLayers,
                                .row_bytes = kRowBytes,
                                .capacity_tokens = 8 * kKvBlockTokens,
                                .incarnation = 77,
                                .tier = tier,
                                .x_row_bytes = tier == MemoryKind::kHost ? kXRowBytes : 0},
                               device, clock)) {}
  virtual ~HandoffWorld() = default;
  virtual HandoffSender& sender(int process) = 0;
  virtual PeerId decode() const = 0;

  FailingDevice device;
  FakeClock clock;
  HandoffFaults sending, receiving;
  std::unique_ptr<KvStore> store;
  std::atomic<int> retries = 0, corrupt = 0;
};

class HandoffContract : public ::testing::TestWithParam<std::function<std::unique_ptr<HandoffWorld>()>> {
 protected:
  void SetUp() override { world_ = GetParam()(); }

  // Long enough that only a hang runs out of it.
  static absl::Status Await(const Event& event) { return event.Wait(LongestWait()); }
  static absl::StatusCode Code(const Event& event) { return Await(event).code(); }

  LeaseId Reserve(int64_t tokens, bool with_x = false, int64_t kv_from = 0) {
    return *world_->store->Reserve(
        {.prompt_tokens = tokens, .total_tokens = tokens, .with_x = with_x, .kv_from = kv_from});
  }
  // A store in device memory keeps no X.
  void ExpectNoLeaseWithX() {
    EXPECT_EQ(world_->store->Reserve({.prompt_tokens = 1, .total_tokens = 1, .with_x = true}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  // The rows [begin, end) of a prompt whose layer has Pattern(whole, layer + 1).
  static BufferRef Rows(int64_t layer, int64_t begin, int64_t end, int64_t whole) {
    const BufferRef all = Pattern(whole * kRowBytes, layer + 1);
    return all.Slice(begin * kRowBytes, (end - begin) * kRowBytes);
  }
  // X of the same.
  static BufferRef XRows(int64_t layer, int64_t begin, int64_t end, int64_t whole) {
    const BufferRef all = Pattern(whole * kXRowBytes, layer + 100);
    return all.Slice(begin * kXRowBytes, (end - begin) * kXRowBytes);
  }
  Event Push(int process, const Slice& slice, BufferRef bytes, const Event& after = Event()) {
    return world_->sender(process).Push(world_->decode(), slice, std::move(bytes), after);
  }
  void ExpectComplete(const LeaseId& lease, int64_t tokens) {
    ASSERT_TRUE(Await(world_->store->Complete(lease)).ok());
    const auto sequence = world_->store->Open(lease);
    ASSERT_TRUE(sequence.ok()) << sequence.status();
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      std::string rows;
      for (const KvSpan& span : SpansOf(*world_->store, *sequence, layer)) rows += world_->device.Peek(span.rows);
      EXPECT_EQ(rows.substr(0, tokens * kRowBytes), Bytes(Rows(layer, 0, tokens, tokens))) << "layer " << layer;
    }
  }

  std::unique_ptr<HandoffWorld> world_;
};

}  // namespace runahead::testing
