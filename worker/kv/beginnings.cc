#include "worker/kv/beginnings.h"

#include <algorithm>
#include <utility>

#include "kernels/base/kv_table.h"
#include "scheduler/placement/beginning_hash.h"

namespace runahead {

static_assert(kKvBlockTokens == kHashedTokens, "the router would know no hash of what is evicted");

int64_t Beginnings::FirstSeenByWindows(int64_t position) const {
  int64_t first = position;
  for (const int64_t window : windows_) {
    if (window > 0) first = std::min(first, FirstSeen(window, position));
  }
  return first;
}

Beginnings::Hit Beginnings::Find(absl::string_view salt, absl::Span<const int32_t> ids) const {
  const auto known = tree_.Find(salt, ids);
  const int64_t seen = FirstSeenByWindows(known.tokens);
  Hit hit{.tokens = known.tokens, .has_x = known.tokens > 0};
  for (int64_t begin = 0; begin < known.tokens; begin += kKvBlockTokens) {
    const Kept& kept = known.nodes[begin / kKvBlockTokens]->value;
    const int64_t end = std::min(begin + kKvBlockTokens, known.tokens);
    if (end > seen && kept.hole > std::max(seen, begin)) return {};
    hit.blocks.push_back(kept.block);
    for (int64_t token = begin; token < end; ++token) hit.of_answer.push_back(kept.of_answer[token - begin]);
    hit.hole = std::max(hit.hole, std::min(kept.hole, known.tokens));
    hit.has_x = hit.has_x && kept.has_x;
  }
  return hit;
}

Beginnings::Change Beginnings::Add(absl::string_view salt, absl::Span<const int32_t> ids,
                                   absl::Span<const int32_t> blocks, const std::vector<bool>& of_answer, int64_t hole,
                                   bool has_x) {
  const auto size = static_cast<int64_t>(ids.size());
  Change change;
  uint64_t hash = BeginningHash(salt);
  const auto take = [&](int64_t chunk, Kept& kept, bool fresh) {
    const int64_t begin = chunk * kKvBlockTokens, end = std::min(begin + kKvBlockTokens, size);
    Kept own{.block = blocks[chunk], .hole = hole > begin ? std::min(hole, begin + kKvBlockTokens) : 0, .has_x = has_x};
    for (int64_t token = begin; token < end; ++token) own.of_answer[token - begin] = of_answer[token];
    hash = own.hash = fresh ? BeginningHash(hash, ids.subspan(begin, end - begin)) : kept.hash;
    if (fresh) {
      change.fresh.push_back(hash);
    } else {
      const bool whole = end - begin == kKvBlockTokens;
      const bool lacks = own.hole > kept.hole || (kept.has_x && !own.has_x);
      const bool has_more = own.hole < kept.hole || (own.has_x && !kept.has_x);
      if (!whole || lacks || !has_more) return;
      if (own.block == kept.block) {  // who kept it before did not have all that lies there
        kept = own;
        return;
      }
      change.forgotten.push_back(kept.block);
    }
    change.kept.push_back(own.block);
    kept = own;
  };
  for (const Kept& dropped : tree_.Add(salt, ids, take)) change.forgotten.push_back(dropped.block);
  return change;
}

std::optional<Beginnings::Removed> Beginnings::RemoveOldest() {
  const std::optional<Kept> removed = tree_.RemoveOldest();
  if (!removed.has_value()) return std::nullopt;
  return Removed{removed->block, removed->hash};
}

std::vector<int32_t> Beginnings::RemoveSalt(absl::string_view salt) {
  std::vector<int32_t> blocks;
  for (const Kept& removed : tree_.RemoveSalt(salt)) blocks.push_back(removed.block);
  return blocks;
}

}  // namespace runahead
