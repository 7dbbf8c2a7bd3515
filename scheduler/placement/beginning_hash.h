// The number by which a decode worker names a beginning of tokens to its router. Pure.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace runahead {

// Tokens between one hash of a beginning and the next: a block of a decode worker, and a node of the router's index.
inline constexpr int64_t kHashedTokens = 256;

// The finalizer of splitmix64: each bit of `x` changes each bit of the result about half of the time.
inline uint64_t MixBits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The hash of the empty beginning under the salt. The same in every process, build and byte order, for both sides of a
// wire compute it.
inline uint64_t BeginningHash(absl::string_view salt) {
  uint64_t hash = salt.size();
  for (const char c : salt) hash = MixBits(hash + 0x9e3779b97f4a7c15 + static_cast<uint8_t>(c));
  return hash;
}

// The hash of a beginning that ends with `ids`; `before` is the hash of all tokens before them. Two beginnings may have
// one hash, by chance or by somebody's will: it may say which entry of an index to forget, but never which KV to use.
inline uint64_t BeginningHash(uint64_t before, absl::Span<const int32_t> ids) {
  for (const int32_t id : ids) before = MixBits(before + 0x9e3779b97f4a7c15 + static_cast<uint32_t>(id));
  return before;
}

}  // namespace runahead
