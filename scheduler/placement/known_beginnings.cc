#include "scheduler/placement/known_beginnings.h"

#include <set>

#include "absl/algorithm/container.h"

namespace runahead {

int64_t KnownBeginnings::BytesOf(const Tree& tree) {
  return tree.nodes() * kNodeBytes + tree.tokens() * static_cast<int64_t>(sizeof(int32_t));
}

void KnownBeginnings::Learn(const Life& worker, int64_t capacity_tokens, absl::string_view salt,
                            absl::Span<const int32_t> ids, uint64_t lesson) {
  if (static_cast<int64_t>(ids.size()) < kLeastKnownTokens) return;
  std::unique_ptr<Tree>& tree = trees_[worker];
  if (tree == nullptr) tree = std::make_unique<Tree>(kChunkTokens);
  tree->Add(salt, ids, [lesson](int64_t, uint64_t& last, bool) { last = lesson; });
  while (tree->tokens() > capacity_tokens && tree->RemoveOldest()) {
  }
  int64_t bytes = 0;
  for (const auto& [life, one] : trees_) bytes += BytesOf(*one);
  while (bytes > most_bytes_) {
    const auto largest = absl::c_max_element(
        trees_, [](const auto& a, const auto& b) { return BytesOf(*a.second) < BytesOf(*b.second); });
    const int64_t before = BytesOf(*largest->second);
    if (!largest->second->RemoveOldest()) return;
    bytes -= before - BytesOf(*largest->second);
  }
}

int64_t KnownBeginnings::Known(const Life& worker, absl::string_view salt, absl::Span<const int32_t> ids) const {
  const auto tree = trees_.find(worker);
  if (tree == trees_.end()) return 0;
  const int64_t known = tree->second->Find(salt, ids).tokens;
  return known < kLeastKnownTokens ? 0 : known;
}

void KnownBeginnings::Gone(const Life& worker, absl::string_view salt, absl::Span<const int32_t> ids, int64_t least,
                           uint64_t asked) {
  const auto tree = trees_.find(worker);
  if (tree == trees_.end() || least < 1 || least > static_cast<int64_t>(ids.size())) return;
  tree->second->RemoveBeginning(salt, ids.first(least), [asked](uint64_t lesson) { return lesson <= asked; });
}

void KnownBeginnings::Retain(absl::Span<const Life> workers) {
  const std::set<Life> there(workers.begin(), workers.end());
  std::erase_if(trees_, [&](const auto& entry) { return !there.contains(entry.first); });
}

int64_t KnownBeginnings::tokens() const {
  int64_t tokens = 0;
  for (const auto& [life, tree] : trees_) tokens += tree->tokens();
  return tokens;
}

KnownBeginnings::Size KnownBeginnings::SizeOfTree(const Tree& tree, std::optional<absl::string_view> salt) {
  if (!salt.has_value()) return {tree.tokens(), BytesOf(tree)};
  const Tree::Size size = tree.SizeOf(*salt);
  return {size.tokens, size.nodes * kNodeBytes + size.tokens * static_cast<int64_t>(sizeof(int32_t))};
}

KnownBeginnings::Size KnownBeginnings::SizeOf(const Life& worker, std::optional<absl::string_view> salt) const {
  const auto tree = trees_.find(worker);
  return tree == trees_.end() ? Size() : SizeOfTree(*tree->second, salt);
}

KnownBeginnings::Size KnownBeginnings::SizeOfAll(std::optional<absl::string_view> salt) const {
  Size size;
  for (const auto& [life, tree] : trees_) size += SizeOfTree(*tree, salt);
  return size;
}

void KnownBeginnings::Forget(std::optional<absl::string_view> salt) {
  if (!salt.has_value()) return trees_.clear();
  for (const auto& [life, tree] : trees_) tree->RemoveSalt(*salt);
}

}  // namespace runahead
