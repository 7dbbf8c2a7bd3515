#include "worker/prefill/stage_memory.h"

#include <utility>

#include "scheduler/placement/overtaking.h"

namespace runahead {
namespace {

// A size after which what follows is aligned as a device's memory is.
constexpr size_t Aligned(size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

constexpr size_t InterleavedBytes(size_t half_bytes) {
  return half_bytes / kOvertakenShare;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Buffer>> StageMemory::Allocate(size_t bytes, Device& device) {
  const size_t half = bytes / 2;
  return device.Allocate(2 * Aligned(half) + Aligned(InterleavedBytes(half)), MemoryKind::kDevice);
}

StageMemory::StageMemory(size_t bytes, std::shared_ptr<Buffer> memory)
    : half_bytes_(bytes / 2), memory_(std::move(memory)) {}

size_t StageMemory::interleaved_bytes() const {
  return InterleavedBytes(half_bytes_);
}

std::optional<StageMemory::Region> StageMemory::Take(Region region) {
  if (taken_[region]) return std::nullopt;
  taken_[region] = true;
  return region;
}

std::optional<StageMemory::Region> StageMemory::TakeHalf() {
  const auto first = Take(kFirstHalf);
  return first.has_value() ? first : Take(kSecondHalf);
}

std::optional<StageMemory::Region> StageMemory::TakeInterleaved() {
  return Take(kInterleaved);
}

void StageMemory::GiveBack(Region region) {
  taken_[region] = false;
}

BufferRef StageMemory::Of(Region region) const {
  const size_t bytes = region == kInterleaved ? interleaved_bytes() : half_bytes_;
  return BufferRef::Whole(memory_).Slice(static_cast<size_t>(region) * Aligned(half_bytes_), bytes);
}

int64_t StageMemory::taken_bytes() const {
  int64_t bytes = 0;
  for (const Region region : {kFirstHalf, kSecondHalf, kInterleaved}) {
    if (taken_[region]) bytes += static_cast<int64_t>(Of(region).size);
  }
  return bytes;
}

}  // namespace runahead
