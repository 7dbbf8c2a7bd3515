// Metadata that does not lie in a GGUF file, in the form that it has there.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/format/model_file.h"

namespace runahead {

// Collects keys and values; a key that is written again has the later value. What it gives out points into it.
class MetadataWriter {
 public:
  void Uint(absl::string_view key, uint64_t value);
  void Float(absl::string_view key, double value);
  void Bool(absl::string_view key, bool value);
  void String(absl::string_view key, absl::string_view value);
  void Ints(absl::string_view key, const std::vector<int64_t>& values);
  void Bools(absl::string_view key, const std::vector<bool>& values);
  // A string that is not copied: it must outlive all use.
  void Text(absl::string_view key, absl::Span<const std::byte> text);

  const absl::flat_hash_map<absl::string_view, MetadataValue>& values() const { return values_; }

 private:
  void Put(absl::string_view key, MetadataValue value);
  absl::Span<const std::byte> Keep(const void* bytes, size_t size);

  std::deque<std::string> kept_;  // whose elements do not move
  absl::flat_hash_map<absl::string_view, MetadataValue> values_;
};

}  // namespace runahead
