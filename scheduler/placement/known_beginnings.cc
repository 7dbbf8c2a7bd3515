#include "scheduler/placement/known_beginnings.h"

#include <set>

#include "absl/algorithm/container.h"
#include "scheduler/placement/beginning_hash.h"

namespace runahead {

int64_t KnownBeginnings::BytesOf(const Tree& tree) {
  return tree.nodes() * kNodeBytes + tree.tokens() * static_cast<int64_t>(sizeof(int32_t));
}

void KnownBeginnings::Beginnings::Forget(absl::Span<const Chunk> removed) {
  for (const Chunk& chunk : removed) by_hash.erase(chunk.hash);
}

bool KnownBeginnings::Beginnings::RemoveOldest() {
  const std::optional<Chunk> removed = tree.RemoveOldest();
  if (removed.has_value()) by_hash.erase(removed->hash);
  return removed.has_value();
}

void KnownBeginnings::Learn(const Life& worker, int64_t capacity_tokens, absl::string_view salt,
                            absl::Span<const int32_t> ids, uint64_t lesson) {
  if (static_cast<int64_t>(ids.size()) < kLeastKnownTokens) return;
  std::unique_ptr<Beginnings>& of = workers_[worker];
  if (of == nullptr) of = std::make_unique<Beginnings>();
  uint64_t hash = BeginningHash(salt);
  of->Forget(of->tree.Add(salt, ids, [&](int64_t chunk, Chunk& value, bool fresh) {
    if (fresh) value.hash = BeginningHash(hash, ids.subspan(chunk * kChunkTokens, kChunkTokens));
    value.lesson = lesson;
    hash = value.hash;
  }));
  for (Tree::Node* const node : of->tree.Find(salt, ids).nodes) of->by_hash.try_emplace(node->value.hash, node);
  while (of->tree.tokens() > capacity_tokens && of->RemoveOldest()) {
  }
  int64_t bytes = 0;
  for (const auto& [life, one] : workers_) bytes += BytesOf(one->tree);
  while (bytes > most_bytes_) {
    const auto largest = absl::c_max_element(
        workers_, [](const auto& a, const auto& b) { return BytesOf(a.second->tree) < BytesOf(b.second->tree); });
    const int64_t before = BytesOf(largest->second->tree);
    if (!largest->second->RemoveOldest()) return;
    bytes -= before - BytesOf(largest->second->tree);
  }
}

int64_t KnownBeginnings::Known(const Life& worker, absl::string_view salt, absl::Span<const int32_t> ids) const {
  const auto of = workers_.find(worker);
  if (of == workers_.end()) return 0;
  const int64_t known = of->second->tree.Find(salt, ids).tokens;
  return known < kLeastKnownTokens ? 0 : known;
}

void KnownBeginnings::Gone(const Life& worker, absl::string_view salt, absl::Span<const int32_t> ids, int64_t least,
                           uint64_t asked) {
  const auto of = workers_.find(worker);
  if (of == workers_.end() || least < 1 || least > static_cast<int64_t>(ids.size())) return;
  const auto may_go = [asked](const Chunk& chunk) { return chunk.lesson <= asked; };
  of->second->Forget(of->second->tree.RemoveBeginning(salt, ids.first(least), may_go));
}

void KnownBeginnings::Evicted(const Life& worker, absl::Span<const uint64_t> hashes, uint64_t asked) {
  const auto of = workers_.find(worker);
  if (of == workers_.end()) return;
  const auto may_go = [asked](const Chunk& chunk) { return chunk.lesson <= asked; };
  for (const uint64_t hash : hashes) {
    const auto node = of->second->by_hash.find(hash);
    if (node == of->second->by_hash.end()) continue;
    of->second->Forget(of->second->tree.RemoveFrom(*node->second, may_go));
  }
}

void KnownBeginnings::Retain(absl::Span<const Life> workers) {
  const std::set<Life> there(workers.begin(), workers.end());
  std::erase_if(workers_, [&](const auto& entry) { return !there.contains(entry.first); });
}

int64_t KnownBeginnings::tokens() const {
  int64_t tokens = 0;
  for (const auto& [life, of] : workers_) tokens += of->tree.tokens();
  return tokens;
}

KnownBeginnings::Size KnownBeginnings::SizeOfTree(const Tree& tree, std::optional<absl::string_view> salt) {
  if (!salt.has_value()) return {tree.tokens(), BytesOf(tree)};
  const Tree::Size size = tree.SizeOf(*salt);
  return {size.tokens, size.nodes * kNodeBytes + size.tokens * static_cast<int64_t>(sizeof(int32_t))};
}

KnownBeginnings::Size KnownBeginnings::SizeOf(const Life& worker, std::optional<absl::string_view> salt) const {
  const auto of = workers_.find(worker);
  return of == workers_.end() ? Size() : SizeOfTree(of->second->tree, salt);
}

KnownBeginnings::Size KnownBeginnings::SizeOfAll(std::optional<absl::string_view> salt) const {
  Size size;
  for (const auto& [life, of] : workers_) size += SizeOfTree(of->tree, salt);
  return size;
}

void KnownBeginnings::Forget(std::optional<absl::string_view> salt) {
  if (!salt.has_value()) return workers_.clear();
  for (const auto& [life, of] : workers_) of->Forget(of->tree.RemoveSalt(*salt));
}

}  // namespace runahead
