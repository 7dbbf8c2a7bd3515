// Texts by their bytes, to find those that another text begins with.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace runahead {

// Thread-safe once filled.
class ByteTrie {
 public:
  // An empty text is never found. Of two equal ones the first counts.
  void Add(std::string_view text, int32_t id) {
    if (text.empty()) return;
    uint32_t node = 0;
    for (const char byte : text) {
      const auto [child, added] = children_.try_emplace(Edge(node, byte), static_cast<uint32_t>(ids_.size()));
      if (added) ids_.push_back(-1);
      node = child->second;
    }
    if (ids_[node] < 0) ids_[node] = id;
  }

  // Calls `on_prefix(bytes, id)` for every text that `text` begins with, the shortest first.
  template <typename OnPrefix>
  void ForPrefixes(std::string_view text, OnPrefix on_prefix) const {
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto child = children_.find(Edge(node, text[i]));
      if (child == children_.end()) return;
      node = child->second;
      if (ids_[node] >= 0) on_prefix(i + 1, ids_[node]);
    }
  }

 private:
  static uint64_t Edge(uint32_t node, char byte) {
    return static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(byte);
  }

  absl::flat_hash_map<uint64_t, uint32_t> children_;  // node 0 is the root
  std::vector<int32_t> ids_ = {-1};                   // by node; -1: no text ends here
};

}  // namespace runahead
