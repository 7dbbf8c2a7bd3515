// A store for leases that grow, counted in blocks.
#pragma once

#include <cstdint>

#include "tests/worker/kv/store_fixture.h"

namespace runahead {

class KvStoreGrowth : public KvStoreTest {
 protected:
  static constexpr int64_t kBlockBytes = kLayers * kKvBlockTokens * kRowBytes;

  absl::StatusOr<LeaseId> TryReserve(int64_t prompt, int64_t total, int64_t expected) {
    return store_->Reserve({.prompt_tokens = prompt, .total_tokens = total, .expected_tokens = expected});
  }
  // With the prompt's KV.
  KvStore::Sequence OpenOne(int64_t prompt, int64_t total, int64_t expected) {
    const LeaseId lease = *TryReserve(prompt, total, expected);
    FillAll(lease, prompt);
    return *store_->Open(lease);
  }
  // kBlockBytes, but of a store that quantises, or has X.
  int64_t BlockBytes() const {
    return kLayers * kKvBlockTokens * (store_->options().stored_row_bytes() + store_->options().x_row_bytes);
  }
  int64_t Used() { return store_->stats().used_bytes / BlockBytes(); }
  int64_t Promised() { return store_->stats().promised_bytes / BlockBytes(); }
  int64_t Growable() { return store_->stats().growable_bytes / BlockBytes(); }
};

}  // namespace runahead
