// Device memory for what of KV and X stays on the device while the stores are in host memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/buffer.h"
#include "kernels/base/device.h"

namespace runahead {

// Blocks of kKvBlockTokens tokens in all layers: of KV from the memory's low end, of X from its high end, as many of
// each as fit while they do not meet. A block is [layers][kKvBlockTokens][row bytes]. Not thread-safe: it belongs to
// the decode loop. Work that is enqueued on a block may outlast its return where all such work is on one stream.
class ResidentMemory {
 public:
  // `bytes` of `device`'s memory, perhaps none. x_row_bytes 0: no X.
  static absl::StatusOr<ResidentMemory> Create(Device& device, int64_t layers, int64_t row_bytes, int64_t x_row_bytes,
                                               int64_t bytes);

  // The lowest number that is free; nothing where no block fits.
  std::optional<int32_t> TakeKv();
  std::optional<int32_t> TakeX();
  void ReturnKv(int32_t block);
  void ReturnX(int32_t block);

  // KV of `layer` by pages of kKvBlockTokens: that of block b is page KvPage(b) behind this base.
  BufferRef KvLayer(int64_t layer) const;
  int32_t KvPage(int32_t block) const { return static_cast<int32_t>(block * layers_); }
  // A block's rows in one layer.
  BufferRef KvRows(int64_t layer, int32_t block) const;
  BufferRef XRows(int64_t layer, int32_t block) const;

  int64_t bytes() const { return bytes_; }
  int64_t used_bytes() const;
  int64_t kv_block_bytes() const { return kv_block_bytes_; }
  int64_t x_block_bytes() const { return x_block_bytes_; }

 private:
  ResidentMemory(std::shared_ptr<Buffer> memory, int64_t layers, int64_t row_bytes, int64_t x_row_bytes, int64_t bytes);

  std::shared_ptr<Buffer> memory_;  // null: none
  int64_t layers_, bytes_;
  int64_t kv_block_bytes_, x_block_bytes_;
  // Of each number up to the highest that is taken: whether it is.
  std::vector<bool> kv_, x_;
};

}  // namespace runahead
