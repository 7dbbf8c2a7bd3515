// What TCP engines say. A connection begins with a hello and a proof from each side (tcp_proof.h); after them come
// frames, each a prefix and what it announces. Little-endian, as all hosts that we build for are.
//
// A prefix and a header come as they were sent, or the connection ends: each has a checksum. So have the bytes of a
// transfer, all of them together; those that come damaged are sent again.
#pragma once

#include <xxhash.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "worker/link/message_engine.h"

namespace runahead {

// The sender's address follows.
struct TcpHello {
  static constexpr uint32_t kMagic = 0x4B4E4C52;  // "RLNK"
  static constexpr uint16_t kVersion = 4;
  // Of a numeric host with its port; IPv6 with a zone is the longest.
  static constexpr uint16_t kMaxAddress = 128;

  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  uint16_t address_bytes = 0;
  uint64_t from = 0;  // incarnations
  uint64_t to = 0;
  uint32_t from_epoch = 0;
  uint32_t to_epoch = 0;
  uint32_t generation = 0;  // which connection of the two it is
  uint32_t reserved = 0;
  std::array<uint64_t, 2> nonce{};  // random
};

enum class TcpFrame : uint8_t {
  kMessage = 1,  // the header follows, and the bytes where it is a transfer of few
  kOffer,        // a transfer: the header follows; the bytes wait at the sender
  kGrant,        // the receiver has a place for so many more of a transfer's bytes
  kChunk,        // the next bytes that were granted follow
  kMoved,        // the bytes that were granted went past the connection
  kAgain,        // the bytes are to be sent again from the first one on, as they are granted
  kAnswer,       // the receiver has done with a transfer
};

struct TcpPrefix {
  TcpFrame frame = TcpFrame::kMessage;
  uint8_t answer = 0;         // kAnswer: an absl::StatusCode; OK where the bytes were taken
  uint16_t kind = 0;          // kMessage, kOffer
  uint32_t header_bytes = 0;  // kMessage, kOffer
  uint64_t bytes = 0;         // kMessage, kChunk: that follow; kOffer: of the whole; kGrant: that may come
  uint64_t transfer = 0;      // counts from 0 on each connection and side
  uint64_t sum = 0;           // kMessage, the last kChunk, kMoved: of the transfer's bytes
  uint64_t header_hash = 0;   // kMessage, kOffer: xxHash64 of the header
  uint64_t hash = 0;          // xxHash64 of all before
};

// The longest thing but a chunk.
inline constexpr size_t kMaxTcpFrame = sizeof(TcpPrefix) + kMaxHeader + kEagerBytes;
// One transfer's turn. Others, and small messages, wait for at most so much.
inline constexpr size_t kTcpChunk = size_t{1} << 20;

template <typename T>
std::string TcpBytes(const T& wire) {
  return std::string(reinterpret_cast<const char*>(&wire), sizeof(wire));
}
inline uint64_t TcpHash(const void* data, size_t size) {
  return XXH64(data, size, /*seed=*/0);
}
// `prefix` with its checksums, of itself and of `header`.
inline TcpPrefix TcpSealed(TcpPrefix prefix, std::string_view header = {}) {
  prefix.header_hash = TcpHash(header.data(), header.size());
  prefix.hash = TcpHash(&prefix, offsetof(TcpPrefix, hash));
  return prefix;
}
// Whether the prefix is as it was sent; says nothing of its header.
inline bool TcpIsWhole(const TcpPrefix& prefix) {
  return prefix.hash == TcpHash(&prefix, offsetof(TcpPrefix, hash));
}

template <typename T>
T TcpRead(const char* bytes) {
  T wire;
  std::memcpy(&wire, bytes, sizeof(wire));
  return wire;
}

}  // namespace runahead
