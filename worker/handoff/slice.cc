#include "worker/handoff/slice.h"

#include <iterator>

#include "worker/link/running_sum.h"

namespace runahead {

absl::StatusCode CodeOf(SliceVerdict verdict) {
  switch (verdict) {
    case SliceVerdict::kAccepted:
      return absl::StatusCode::kOk;
    case SliceVerdict::kCorrupt:
      return absl::StatusCode::kDataLoss;
    case SliceVerdict::kNoLease:
      return absl::StatusCode::kNotFound;
    case SliceVerdict::kBadRange:
      return absl::StatusCode::kOutOfRange;
    case SliceVerdict::kBadForm:
      return absl::StatusCode::kFailedPrecondition;
  }
  return absl::StatusCode::kInternal;
}

uint64_t SeedOf(const Slice& slice) {
  const uint64_t what[] = {slice.lease.incarnation,
                           slice.lease.number,
                           slice.lease.epoch,
                           static_cast<uint64_t>(slice.layer),
                           static_cast<uint64_t>(slice.begin),
                           static_cast<uint64_t>(slice.end),
                           static_cast<uint64_t>(slice.kind),
                           static_cast<uint64_t>(slice.form)};
  return SumSeed(what, std::size(what));
}

uint64_t SumPieces(uint64_t seed, const std::vector<BufferRef>& pieces) {
  RunningSum sum(seed);
  for (const BufferRef& piece : pieces) {
    if (piece.size > 0) sum.Add(piece.data(), piece.size);
  }
  return sum.value();
}

}  // namespace runahead
