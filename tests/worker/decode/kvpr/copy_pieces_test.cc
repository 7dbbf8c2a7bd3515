// Whatever KVPR moves in bulk goes over the link in pieces of bounded size, and all of it does.
#include "worker/decode/kvpr/copy_pieces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "tests/testing/wrapping_device.h"
#include "tests/worker/decode/kvpr/kvpr_cases.h"
#include "tests/worker/decode/kvpr/kvpr_world.h"

namespace runahead {
namespace {

// Copies from and to a store's KV.
class PiecesDevice final : public WrappingDevice {
 public:
  using WrappingDevice::WrappingDevice;
  struct Copies {
    size_t bytes = 0, largest = 0;
    void Add(size_t size) {
      bytes += size;
      largest = std::max(largest, size);
    }
  };
  absl::Status Copy(Stream& stream, const ConstBufferRef& from, const BufferRef& to) override {
    if (from.buffer == kv) there.Add(from.size);
    if (to.buffer == kv) back.Add(from.size);
    return inner_->Copy(stream, from, to);
  }
  std::shared_ptr<Buffer> kv;
  Copies there, back;
};

// Of the first of two chunks X came instead of KV: its rows go back. The rows of a chunk lie behind each other in the
// store, and are more than a piece.
TEST(CopyPiecesTest, NoCopyOfKvIsLargerThanAPiece) {
  constexpr int64_t kRows = 1024;
  SyntheticModel wide = SmallModel(1);
  wide.hidden = 288;
  wide.heads = wide.kv_heads = 9;
  wide.head_dim = 32;
  const LoadedModel loaded = LoadForTest(WriteSynthetic(wide, "copy_pieces"), DType::kF32, 2);
  const auto device = std::make_shared<PiecesDevice>(loaded.device);
  const LoadedModel watched{loaded.file, device,
                            *LoadModel(loaded.file, device, kUsePrefill | kUseDecode, [](int, int) {})};
  const auto rows_bytes = static_cast<size_t>(kRows * loaded.model->kv_row_bytes());
  ASSERT_GT(rows_bytes, kKvPieceBytes);
  KvprWorld world(watched, {2 * kRows}, 2, true, {}, nullptr, kRows);
  KvprOptions options;
  options.chunk_tokens = kRows;
  world.UseKvpr(SplitAt(kRows), options);
  device->kv = world.store().arena().Layer(0).buffer;
  world.Step();
  EXPECT_EQ(device->back.bytes, rows_bytes);
  EXPECT_EQ(device->back.largest, kKvPieceBytes);
  EXPECT_GE(device->there.bytes, rows_bytes);
  EXPECT_EQ(device->there.largest, kKvPieceBytes);
}

}  // namespace
}  // namespace runahead
