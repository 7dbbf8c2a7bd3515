// Where a stage's jobs keep their layer buffers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "kernels/base/device.h"

namespace runahead {

// Two halves for ordered jobs: one computes while the other's last transfers end. A region apart for interleaved ones,
// so that no ordered job waits for it: a share of a half, as what they take is of an ordered one's time. One that needs
// more overtakes others only before they begin, and takes a half. Not thread-safe.
class StageMemory {
 public:
  enum Region { kFirstHalf, kSecondHalf, kInterleaved };

  // For stages that follow each other on one device. `bytes` are those of the two halves.
  static absl::StatusOr<std::shared_ptr<Buffer>> Allocate(size_t bytes, Device& device);
  // `memory`: Allocate's for so many bytes.
  StageMemory(size_t bytes, std::shared_ptr<Buffer> memory);

  size_t half_bytes() const { return half_bytes_; }
  size_t interleaved_bytes() const;
  bool half_free() const { return !taken_[kFirstHalf] || !taken_[kSecondHalf]; }
  // Nothing where it is in use.
  std::optional<Region> TakeHalf();
  std::optional<Region> TakeInterleaved();
  void GiveBack(Region region);
  BufferRef Of(Region region) const;
  // In use now.
  int64_t taken_bytes() const;

 private:
  std::optional<Region> Take(Region region);

  const size_t half_bytes_;
  const std::shared_ptr<Buffer> memory_;
  std::array<bool, 3> taken_ = {};
};

}  // namespace runahead
