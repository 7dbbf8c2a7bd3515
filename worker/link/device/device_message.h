// What the two sides of a device edge say to each other over the message engine; no bytes of frames are among it.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace runahead {

struct DeviceMessage {
  enum class Kind : uint8_t {
    kOpened = 1,  // this side is open: what is sent to it is looked at
    kIds,         // two communicators are made: `text` is the id of the receiver's incoming one, then its outgoing one
    kAnnounce,    // a frame is there: job, layer, piece, sequence, size
    kGo,          // frame `sequence` is the next one that this side receives, for the first time or again
    kSkip,        // frame `sequence` is not wanted
    kControl,     // of the core: detail is its kind; job, frames, status
    kFailed,      // the communicators failed here, though this process lives: `text` says why
    kSum,         // frame `sequence`, which goes or went, has the checksum `sum`
    kTaken,       // frame `sequence` has come, and its bytes match
    kLost,        // it came damaged for the last time
  };

  Kind kind = Kind::kOpened;
  uint8_t detail = 0;
  uint16_t status = 0;
  uint32_t frames = 0;
  uint64_t job = 0;
  int32_t layer = 0;
  int32_t piece = 0;
  uint64_t sequence = 0;
  uint64_t size = 0;
  uint64_t sum = 0;
  std::string text;
};

// The fixed fields as they lie in memory (both ends are of one byte order, as everywhere in the links), then the text.
inline constexpr size_t kDeviceMessageBytes = 48;

inline std::string Pack(const DeviceMessage& message) {
  std::string packed(kDeviceMessageBytes, '\0');
  const auto put = [&packed](size_t at, const auto& value) { std::memcpy(packed.data() + at, &value, sizeof(value)); };
  put(0, message.kind);
  put(1, message.detail);
  put(2, message.status);
  put(4, message.frames);
  put(8, message.job);
  put(16, message.layer);
  put(20, message.piece);
  put(24, message.sequence);
  put(32, message.size);
  put(40, message.sum);
  return packed + message.text;
}

// False when it is too short. What the values mean is looked at by who takes them.
inline bool Unpack(std::string_view packed, DeviceMessage& message) {
  if (packed.size() < kDeviceMessageBytes) return false;
  const auto take = [packed](size_t at, auto& value) { std::memcpy(&value, packed.data() + at, sizeof(value)); };
  take(0, message.kind);
  take(1, message.detail);
  take(2, message.status);
  take(4, message.frames);
  take(8, message.job);
  take(16, message.layer);
  take(20, message.piece);
  take(24, message.sequence);
  take(32, message.size);
  take(40, message.sum);
  message.text = packed.substr(kDeviceMessageBytes);
  return true;
}

}  // namespace runahead
