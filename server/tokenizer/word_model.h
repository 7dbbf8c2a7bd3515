// From a word to tokens.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "server/tokenizer/keep_going.h"

namespace runahead {

// Immutable, hence thread-safe.
class WordModel {
 public:
  virtual ~WordModel() = default;

  // Appends the tokens of `word`, any bytes, to `ids`. Close to linear in the word, in at most 28 bytes of memory for
  // each of it. Fails only where `steps` do.
  virtual absl::Status Encode(std::string_view word, Steps& steps, std::vector<int32_t>& ids) const = 0;
};

// What stands for text that no token of its own covers: a token for each of its bytes, else the unknown token, else
// nothing. Plain data.
struct Fallback {
  std::array<int32_t, 256> byte_ids = {};  // -1: none
  int32_t unknown = -1;                    // -1: none
  bool fuse_unknown = false;               // adjacent ones are one

  // Whether each of these bytes, of one character or of none, has a token.
  bool HasBytes(std::string_view bytes) const {
    for (const char byte : bytes) {
      if (byte_ids[static_cast<unsigned char>(byte)] < 0) return false;
    }
    return true;
  }
};

}  // namespace runahead
