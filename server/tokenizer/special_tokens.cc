#include "server/tokenizer/special_tokens.h"

namespace runahead {
namespace {

uint64_t Edge(uint32_t node, char byte) {
  return static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(byte);
}

}  // namespace

void SpecialTokens::Add(std::string_view name, int32_t id, bool control) {
  if (name.empty()) return;
  uint32_t node = 0;
  for (const char byte : name) {
    const auto [child, added] = children_.try_emplace(Edge(node, byte), static_cast<uint32_t>(ends_.size()));
    if (added) ends_.emplace_back();
    node = child->second;
  }
  if (ends_[node].id < 0) ends_[node] = {id, control};
}

std::optional<SpecialTokens::Match> SpecialTokens::Find(std::string_view text, size_t from, bool with_control) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    std::optional<Match> longest;
    uint32_t node = 0;
    for (size_t i = begin; i < text.size(); ++i) {
      const auto child = children_.find(Edge(node, text[i]));
      if (child == children_.end()) break;
      node = child->second;
      const End& end = ends_[node];
      if (end.id >= 0 && (with_control || !end.control)) longest = Match{begin, i + 1 - begin, end.id};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

}  // namespace runahead
