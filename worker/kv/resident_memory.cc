#include "worker/kv/resident_memory.h"

#include <algorithm>
#include <utility>

#include "kernels/base/status_macros.h"
#include "worker/kv/block_pool.h"

namespace runahead {
namespace {

// Of all that ops read.
constexpr int64_t kAlignment = 256;

// The lowest number that is not taken, and from now on is.
int32_t TakeLowest(std::vector<bool>& taken) {
  const auto found = std::find(taken.begin(), taken.end(), false);
  const auto number = static_cast<int32_t>(found - taken.begin());
  if (found == taken.end()) taken.push_back(true);
  taken[number] = true;
  return number;
}

void ReturnNumber(std::vector<bool>& taken, int32_t number) {
  RUNAHEAD_CHECK(number >= 0 && number < static_cast<int32_t>(taken.size()) && taken[number]);
  taken[number] = false;
  while (!taken.empty() && !taken.back()) taken.pop_back();
}

// How many numbers there would be, one more taken.
int64_t AfterOneMore(const std::vector<bool>& taken) {
  const auto size = static_cast<int64_t>(taken.size());
  return std::find(taken.begin(), taken.end(), false) == taken.end() ? size + 1 : size;
}

}  // namespace

absl::StatusOr<ResidentMemory> ResidentMemory::Create(Device& device, int64_t layers, int64_t row_bytes,
                                                      int64_t x_row_bytes, int64_t bytes) {
  RUNAHEAD_CHECK(layers > 0 && row_bytes > 0 && x_row_bytes >= 0 && bytes >= 0);
  bytes = bytes / kAlignment * kAlignment;
  std::shared_ptr<Buffer> memory;
  if (bytes > 0) {
    RUNAHEAD_ASSIGN_OR_RETURN(memory, device.Allocate(static_cast<size_t>(bytes), MemoryKind::kDevice));
  }
  return ResidentMemory(std::move(memory), layers, row_bytes, x_row_bytes, bytes);
}

ResidentMemory::ResidentMemory(std::shared_ptr<Buffer> memory, int64_t layers, int64_t row_bytes, int64_t x_row_bytes,
                               int64_t bytes)
    : memory_(std::move(memory)),
      layers_(layers),
      bytes_(bytes),
      kv_block_bytes_(layers * kKvBlockTokens * row_bytes),
      x_block_bytes_(layers * kKvBlockTokens * x_row_bytes) {}

std::optional<int32_t> ResidentMemory::TakeKv() {
  const int64_t x_bytes = static_cast<int64_t>(x_.size()) * x_block_bytes_;
  if (AfterOneMore(kv_) * kv_block_bytes_ + x_bytes > bytes_) return std::nullopt;
  return TakeLowest(kv_);
}

std::optional<int32_t> ResidentMemory::TakeX() {
  const int64_t kv_bytes = static_cast<int64_t>(kv_.size()) * kv_block_bytes_;
  if (x_block_bytes_ == 0 || AfterOneMore(x_) * x_block_bytes_ + kv_bytes > bytes_) return std::nullopt;
  return TakeLowest(x_);
}

void ResidentMemory::ReturnKv(int32_t block) {
  ReturnNumber(kv_, block);
}

void ResidentMemory::ReturnX(int32_t block) {
  ReturnNumber(x_, block);
}

BufferRef ResidentMemory::KvLayer(int64_t layer) const {
  const int64_t from = layer * kv_block_bytes_ / layers_;
  return BufferRef::Whole(memory_).Slice(static_cast<size_t>(from), static_cast<size_t>(bytes_ - from));
}

BufferRef ResidentMemory::KvRows(int64_t layer, int32_t block) const {
  const int64_t layer_bytes = kv_block_bytes_ / layers_;
  const int64_t from = block * kv_block_bytes_ + layer * layer_bytes;
  return BufferRef::Whole(memory_).Slice(static_cast<size_t>(from), static_cast<size_t>(layer_bytes));
}

BufferRef ResidentMemory::XRows(int64_t layer, int32_t block) const {
  const int64_t layer_bytes = x_block_bytes_ / layers_;
  const int64_t from = bytes_ - (block + 1) * x_block_bytes_ + layer * layer_bytes;
  return BufferRef::Whole(memory_).Slice(static_cast<size_t>(from), static_cast<size_t>(layer_bytes));
}

int64_t ResidentMemory::used_bytes() const {
  return std::count(kv_.begin(), kv_.end(), true) * kv_block_bytes_ +
         std::count(x_.begin(), x_.end(), true) * x_block_bytes_;
}

}  // namespace runahead
