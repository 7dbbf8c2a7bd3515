// A store in the device memory of every device: what arrives is read back from where decode would read it.
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/device_tensor.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/patience.h"
#include "tests/testing/test_device.h"
#include "worker/kv/store.h"

namespace runahead {
namespace {

constexpr int64_t kLayers = 2;
constexpr int64_t kRowBytes = 48;

std::byte ByteOf(int64_t layer, int64_t token, int64_t byte) {
  return static_cast<std::byte>((layer * 131 + token * 7 + byte) % 251);
}

// Rows [begin, end) as a writer sends them.
absl::Status Send(KvStore& store, const LeaseId& lease, int64_t layer, int64_t begin, int64_t end) {
  RUNAHEAD_ASSIGN_OR_RETURN(KvStore::Write write, store.BeginWrite(lease, layer, begin, end));
  RUNAHEAD_RETURN_IF_ERROR(write.ready().Wait());
  int64_t index = begin * kRowBytes;
  for (const BufferRef& ref : write.destination()) {
    for (size_t i = 0; i < ref.size; ++i, ++index) ref.data()[i] = ByteOf(layer, index / kRowBytes, index % kRowBytes);
  }
  return write.Commit().Wait();
}

TEST(DeviceTier, WhatArrivesIsInTheBlocksOfTheSequence) {
  RUNAHEAD_NEED_TEST_DEVICE(DType::kF32);
  const std::shared_ptr<Device> device = *OpenTestDevice(DType::kF32, 1);
  testing::FakeClock clock;
  KvStoreOptions options{kLayers, kRowBytes, 8 * kKvBlockTokens, 99};
  options.tier = MemoryKind::kDevice;
  const std::unique_ptr<KvStore> store = *KvStore::Create(options, *device, clock);
  std::vector<LeaseId> small;  // so that the lease's blocks do not follow each other
  for (int i = 0; i < 8; ++i) small.push_back(*store->Reserve({.prompt_tokens = 1, .total_tokens = 1}));
  for (const int i : {1, 4, 5}) store->Release(small[i]);
  constexpr int64_t kPrompt = 700;
  const LeaseId lease = *store->Reserve({.prompt_tokens = kPrompt, .total_tokens = kPrompt});
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{{300, kPrompt}, {0, 300}}) {
      ASSERT_EQ(Send(*store, lease, layer, begin, end), absl::OkStatus());
    }
  }
  ASSERT_EQ(store->Complete(lease).status(), absl::OkStatus());
  const absl::StatusOr<KvStore::Sequence> sequence = store->Open(lease);
  ASSERT_TRUE(sequence.ok());
  DeviceMemory memory(device);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::vector<std::byte> rows = memory.ReadBytes(store->arena().Layer(layer));
    for (int64_t token = 0; token < kPrompt; ++token) {
      const int64_t block = sequence->blocks()[token / kKvBlockTokens];
      const std::byte* const row = &rows[(block * kKvBlockTokens + token % kKvBlockTokens) * kRowBytes];
      for (int64_t byte = 0; byte < kRowBytes; ++byte) {
        ASSERT_EQ(row[byte], ByteOf(layer, token, byte)) << "layer " << layer << ", token " << token;
      }
    }
  }
}

TEST(DeviceTier, AStoreThatEndsAwaitsItsCopies) {
  RUNAHEAD_NEED_TEST_DEVICE(DType::kF32);
  const std::shared_ptr<Device> device = *OpenTestDevice(DType::kF32, 1);
  testing::FakeClock clock;
  KvStoreOptions options{kLayers, kRowBytes, 8 * kKvBlockTokens, 99};
  options.tier = MemoryKind::kDevice;
  std::unique_ptr<KvStore> store = *KvStore::Create(options, *device, clock);
  const LeaseId lease = *store->Reserve({.prompt_tokens = 2000, .total_tokens = 2000});
  std::vector<Event> committed;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    absl::StatusOr<KvStore::Write> write = store->BeginWrite(lease, layer, 0, 2000);
    ASSERT_TRUE(write.ok());
    ASSERT_TRUE(write->ready().Wait(testing::LongestWait()).ok()) << "after the copy of the layer before";
    for (const BufferRef& ref : write->destination()) std::memset(ref.data(), 1, ref.size);
    committed.push_back(write->Commit());
  }
  store->Release(lease);
  store.reset();
  for (const Event& event : committed) EXPECT_TRUE(event.fired());
}

}  // namespace
}  // namespace runahead
