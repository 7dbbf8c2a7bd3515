// What the two ends of an edge over messages write into their headers, as it lies in memory: both ends are of one byte
// order, as everywhere in the links.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "worker/link/edge.h"

namespace runahead {

// Of a message with a frame's bytes.
struct FrameHeader {
  uint64_t job = 0;
  int32_t layer = 0;
  int32_t piece = 0;
  uint64_t number = 0;  // the sender counts its frames
  uint64_t sum = 0;     // SumOnHost; of an offered frame it comes with the bytes
};

struct ControlHeader {
  uint64_t job = 0;
  uint32_t frames = 0;
  uint16_t status = 0;
  uint16_t kind = 0;
};

// What the two sides say about a frame. Who sends it says kOffer, with all fields; the other side says the rest.
enum OfferKind : uint64_t {
  kOffer = 1,
  kWanted,   // of an offer: its bytes are to be sent
  kSkipped,  // nobody wants it
  kTaken,    // it is here, and whole
  kAgain,    // its bytes came damaged, and are to be sent again
  kLost,     // they came damaged for the last time
};
struct OfferHeader {
  uint64_t kind = 0;
  uint64_t size = 0;
  FrameHeader frame;
};

// Of a message with the bytes of a frame that was asked for.
struct BytesHeader {
  uint64_t number = 0;
  uint64_t sum = 0;
};

template <typename T>
std::string PackHeader(const T& header) {
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header));
}
template <typename T>
bool UnpackHeader(std::string_view bytes, T& header) {
  if (bytes.size() != sizeof(header)) return false;
  std::memcpy(&header, bytes.data(), sizeof(header));
  return true;
}

inline FrameHeader HeaderOf(const FrameId& id, uint64_t number) {
  return {id.job, id.layer, id.piece, number, 0};
}
inline FrameId IdOf(const FrameHeader& header) {
  return {header.job, header.layer, header.piece};
}

}  // namespace runahead
