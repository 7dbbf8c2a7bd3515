// What travels with a slice, whatever carries it, and what is answered.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/handoff/handoff.h"

namespace runahead {

enum class SliceVerdict : uint8_t {
  kAccepted = 1,  // in the store, or there already
  kCorrupt,       // the hash differs: send again
  kNoLease,       // unknown, released or expired
  kBadRange,      // layer, tokens, kind or bytes do not fit
  kBadForm,       // rows come in another form than the store takes
};

// A slice is sent at most this often.
inline constexpr int kSliceAttempts = 3;

struct SliceHeader {
  Slice slice;
  int attempt = 1;
  uint64_t bytes = 0;
  uint64_t xxh64 = 0;  // xxHash64 of the bytes, seed 0
};

// "layer 3, tokens [0, 512) of lease 00000000000000a7", or "X of layer 3, ...": how messages name a slice.
inline std::string Describe(const Slice& slice) {
  return absl::StrCat(slice.kind == SliceKind::kX ? "X of layer " : "layer ", slice.layer, ", tokens [", slice.begin,
                      ", ", slice.end, ") of lease ", absl::Hex(slice.lease.number, absl::kZeroPad16));
}

// xxHash64 of the pieces in order.
uint64_t HashPieces(const std::vector<BufferRef>& pieces);

}  // namespace runahead
