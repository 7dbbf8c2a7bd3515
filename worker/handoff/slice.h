// What is answered to a slice, and how messages and checksums name one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/handoff/handoff.h"

namespace runahead {

enum class SliceVerdict : uint8_t {
  kAccepted = 1,  // in the store, or there already
  kCorrupt,       // the bytes were damaged or lost: send again
  kNoLease,       // unknown, released or expired
  kBadRange,      // layer, tokens, kind or bytes do not fit
  kBadForm,       // rows come in another form than the store takes
};

// As it travels.
absl::StatusCode CodeOf(SliceVerdict verdict);

// "layer 3, tokens [0, 512) of lease 00000000000000a7", or "X of layer 3, ...": how messages name a slice.
inline std::string Describe(const Slice& slice) {
  return absl::StrCat(slice.kind == SliceKind::kX ? "X of layer " : "layer ", slice.layer, ", tokens [", slice.begin,
                      ", ", slice.end, ") of lease ", absl::Hex(slice.lease.number, absl::kZeroPad16));
}

// The seed of a slice's checksum (RunningSum): all that it is, so that its bytes are never taken for others.
uint64_t SeedOf(const Slice& slice);

// RunningSum of the pieces in order.
uint64_t SumPieces(uint64_t seed, const std::vector<BufferRef>& pieces);

}  // namespace runahead
