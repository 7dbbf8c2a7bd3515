// Headers of slices and verdicts as they travel over an engine's messages. Little-endian, as all hosts that we build
// for are.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "worker/handoff/slice.h"

namespace runahead {

struct SliceWire {
  uint64_t request = 0;  // chosen by the sender, returned with the verdict
  uint64_t lease_incarnation = 0;
  uint64_t lease_number = 0;
  uint64_t lease_epoch = 0;
  int64_t begin = 0;
  int64_t end = 0;
  uint64_t bytes = 0;
  uint64_t xxh64 = 0;
  int32_t layer = 0;
  uint8_t attempt = 0;
  uint8_t kind = 0;
  uint8_t form = 0;
  uint8_t reserved = 0;
};

struct VerdictWire {
  uint64_t request = 0;
  uint64_t verdict = 0;
};

// The sender's link address follows, so that the receiver can answer.
inline std::string PackSlice(uint64_t request, const SliceHeader& header, const std::string& sender_address) {
  const Slice& slice = header.slice;
  const SliceWire wire{request,
                       slice.lease.incarnation,
                       slice.lease.number,
                       slice.lease.epoch,
                       slice.begin,
                       slice.end,
                       header.bytes,
                       header.xxh64,
                       slice.layer,
                       static_cast<uint8_t>(header.attempt),
                       static_cast<uint8_t>(slice.kind),
                       static_cast<uint8_t>(slice.form),
                       0};
  return std::string(reinterpret_cast<const char*>(&wire), sizeof(wire)) + sender_address;
}

struct ReceivedSlice {
  uint64_t request = 0;
  SliceHeader header;
  std::string sender_address;
};

// Nothing when it is no such header. Values out of their range become ones that fit no store.
inline std::optional<ReceivedSlice> UnpackSlice(std::string_view bytes) {
  SliceWire wire;
  if (bytes.size() <= sizeof(wire)) return std::nullopt;
  std::memcpy(&wire, bytes.data(), sizeof(wire));
  ReceivedSlice received;
  received.request = wire.request;
  received.sender_address = bytes.substr(sizeof(wire));
  received.header.attempt = wire.attempt;
  received.header.bytes = wire.bytes;
  received.header.xxh64 = wire.xxh64;
  Slice& slice = received.header.slice;
  slice.lease = {wire.lease_incarnation, wire.lease_number, static_cast<uint32_t>(wire.lease_epoch)};
  slice.layer = wire.layer;
  slice.begin = wire.begin;
  slice.end = wire.end;
  slice.kind = static_cast<SliceKind>(wire.kind);
  slice.form = static_cast<RowForm>(wire.form);
  return received;
}

}  // namespace runahead
