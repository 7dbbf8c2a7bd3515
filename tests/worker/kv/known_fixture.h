// A store that keeps what sequences leave, whose rows say which ids they are of.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/worker/kv/growth_fixture.h"
#include "tests/worker/kv/sequence_rows.h"

namespace runahead {

using TokenIds = std::vector<int32_t>;

// `count` ids, others for each `kind`.
inline TokenIds SomeIds(int64_t count, int32_t kind = 0) {
  TokenIds ids(count);
  for (int64_t i = 0; i < count; ++i) ids[i] = static_cast<int32_t>(i % 89) + 1000 * kind;
  return ids;
}

inline TokenIds Joined(TokenIds ids, const TokenIds& more) {
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

class KvStoreKnown : public KvStoreGrowth {
 protected:
  // What a row says: the layer, and a hash of all ids up to its token, for KV of a token is of those before it, too.
  struct Mark {
    int64_t layer = 0;
    uint64_t ids = 0;
    int64_t position = 0;
    friend bool operator==(const Mark&, const Mark&) = default;
  };
  static_assert(sizeof(Mark) == kRowBytes);
  static std::vector<uint64_t> Hashes(const TokenIds& ids) {
    std::vector<uint64_t> hashes;
    uint64_t hash = 17;
    for (const int32_t id : ids) hashes.push_back(hash = (hash ^ static_cast<uint64_t>(id)) * 0x100000001b3u + 0x9e37);
    return hashes;
  }

  // As a step fills rows of tokens [begin, end).
  void FillRows(const KvStore::Sequence& sequence, const TokenIds& ids, int64_t begin, int64_t end) {
    const std::vector<uint64_t> hashes = Hashes(ids);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      for (int64_t t = begin; t < end; ++t) {
        const Mark mark{layer, hashes[t], t};
        std::memcpy(RowOf(*store_, sequence, layer, t).data(), &mark, sizeof(mark));
      }
    }
  }
  // The first token before `end` of which some layer's row is another's; `end`: there is none.
  int64_t FirstWrong(const KvStore::Sequence& sequence, const TokenIds& ids, int64_t end) {
    const std::vector<uint64_t> hashes = Hashes(ids);
    for (int64_t t = 0; t < end; ++t) {
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        Mark mark;
        std::memcpy(&mark, RowOf(*store_, sequence, layer, t).data(), sizeof(mark));
        if (!(mark == Mark{layer, hashes[t], t})) return t;
      }
    }
    return end;
  }
  static void MakeCopies(KvStore::Sequence& sequence) {
    for (const CopyPart& part : sequence.Copies()) {
      RUNAHEAD_CHECK(part.from.size == part.to.size);
      std::memcpy(part.to.data(), part.from.data(), part.to.size);
    }
    sequence.EndCopies();
  }

  static LeaseRequest ForKnown(const TokenIds& prompt, int64_t total, int64_t least = 1) {
    const auto tokens = static_cast<int64_t>(prompt.size());
    return {.prompt_tokens = tokens, .total_tokens = total, .least_known_tokens = least, .prompt_ids = prompt};
  }
  // A sequence of `ids`, the first `prompt` of which are the prompt's, comes, ends, and is kept.
  void Leave(const TokenIds& ids, int64_t prompt, LeaseRequest request = {}) {
    request.prompt_tokens = prompt;
    request.total_tokens = static_cast<int64_t>(ids.size());
    const LeaseId lease = *store_->Reserve(request);
    FillAll(lease, prompt);
    KvStore::Sequence sequence = *store_->Open(lease);
    FillRows(sequence, ids, 0, static_cast<int64_t>(ids.size()));
    sequence.Keep(ids);
  }
  int64_t Kept() { return store_->stats().kept_bytes / BlockBytes(); }
  int64_t Evicted() { return store_->stats().evicted_bytes / BlockBytes(); }
};

}  // namespace runahead
