// Bounds-checked reading of a file image, for the GGUF parser.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace runahead {

// Walks over `bytes`; every read that would leave them gives nothing and moves nowhere. GGUF is little-endian, as are
// all machines we build for.
class GgufCursor {
 public:
  explicit GgufCursor(absl::Span<const std::byte> bytes) : bytes_(bytes) {}

  size_t position() const { return position_; }
  size_t remaining() const { return bytes_.size() - position_; }

  // The next `count` bytes.
  std::optional<absl::Span<const std::byte>> Take(uint64_t count) {
    if (count > remaining()) return std::nullopt;
    absl::Span<const std::byte> taken = bytes_.subspan(position_, count);
    position_ += count;
    return taken;
  }

  // The next number.
  template <typename T>
  std::optional<T> Number() {
    T value;
    if (remaining() < sizeof(T)) return std::nullopt;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  // A 64-bit length and that many bytes.
  std::optional<absl::string_view> String() {
    const size_t start = position_;
    const std::optional<uint64_t> length = Number<uint64_t>();
    if (!length) return std::nullopt;
    const std::optional<absl::Span<const std::byte>> text = Take(*length);
    if (!text) {
      position_ = start;
      return std::nullopt;
    }
    return absl::string_view(reinterpret_cast<const char*>(text->data()), text->size());
  }

 private:
  absl::Span<const std::byte> bytes_;
  size_t position_ = 0;
};

}  // namespace runahead
