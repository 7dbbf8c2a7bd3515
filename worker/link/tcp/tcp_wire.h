// What TCP engines say. A connection begins with a hello and a proof from each side (tcp_proof.h); after them come
// frames, each a prefix and what it announces. Little-endian, as all hosts that we build for are.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include "worker/link/message_engine.h"

namespace runahead {

// The sender's address follows.
struct TcpHello {
  static constexpr uint32_t kMagic = 0x4B4E4C52;  // "RLNK"
  static constexpr uint16_t kVersion = 2;
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
  kMessage = 1,  // header and bytes follow
  kOffer,        // the header follows; the bytes wait at the sender
  kGrant,        // the receiver has a place for an offer's bytes
  kDiscard,      // the receiver does not want them
  kChunk,        // the next bytes of a granted offer follow
};

struct TcpPrefix {
  TcpFrame frame = TcpFrame::kMessage;
  uint8_t reserved = 0;
  uint16_t kind = 0;          // kMessage, kOffer
  uint32_t header_bytes = 0;  // kMessage, kOffer
  uint64_t bytes = 0;         // kMessage, kChunk: that follow; kOffer: of the whole
  uint64_t transfer = 0;      // of an offer: counts from 0 on each connection and side
};

// The longest thing but a chunk.
inline constexpr size_t kMaxTcpFrame = sizeof(TcpPrefix) + kMaxHeader + kEagerBytes;
// One transfer's turn. Others, and small messages, wait for at most so much.
inline constexpr size_t kTcpChunk = size_t{1} << 20;

template <typename T>
std::string TcpBytes(const T& wire) {
  return std::string(reinterpret_cast<const char*>(&wire), sizeof(wire));
}
template <typename T>
T TcpRead(const char* bytes) {
  T wire;
  std::memcpy(&wire, bytes, sizeof(wire));
  return wire;
}

}  // namespace runahead
