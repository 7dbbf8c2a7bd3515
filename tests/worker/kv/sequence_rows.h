// Where the rows of an open lease lie.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/kv/store.h"

namespace runahead {

// Of tokens [begin, end) of a layer, in token order, joined where they touch.
inline std::vector<KvSpan> SpansOf(const KvStore& store, const KvStore::Sequence& sequence, int64_t layer,
                                   int64_t begin, int64_t end) {
  return store.arena().Spans(sequence.blocks(), layer, begin, end);
}

// Of all that the lease reserved.
inline std::vector<KvSpan> SpansOf(const KvStore& store, const KvStore::Sequence& sequence, int64_t layer) {
  return SpansOf(store, sequence, layer, 0, static_cast<int64_t>(sequence.blocks().size()) * kKvBlockTokens);
}

inline BufferRef RowOf(const KvStore& store, const KvStore::Sequence& sequence, int64_t layer, int64_t token) {
  return SpansOf(store, sequence, layer, token, token + 1).front().rows;
}

}  // namespace runahead
