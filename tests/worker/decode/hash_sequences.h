// Sequences for the HashModel: their KV in the store as a hand-off would bring it, and the tokens they must give.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/testing/count_penalties.h"
#include "tests/testing/sample_token.h"
#include "tests/worker/decode/hash_model.h"
#include "worker/decode/sequence.h"
#include "worker/kv/store.h"

namespace runahead::testing {

// Random ids and a lease for them; no KV yet.
inline DecodeSequence MakeHashSequence(KvStore& store, int seed, int64_t prompt, int64_t max_tokens) {
  std::mt19937 random(seed);
  DecodeSequence sequence;
  for (int64_t i = 0; i < prompt; ++i) sequence.prompt_ids.push_back(random() % (HashModel::kVocab - 1));
  sequence.first_token = random() % (HashModel::kVocab - 1);
  sequence.max_tokens = max_tokens;
  const absl::StatusOr<LeaseId> lease = store.Reserve(prompt, prompt + max_tokens);
  RUNAHEAD_CHECK(lease.ok());
  sequence.lease = *lease;
  return sequence;
}

// Does nothing when the lease is gone.
inline void FillHashKv(KvStore& store, const DecodeSequence& sequence, int64_t layer) {
  const int64_t prompt = static_cast<int64_t>(sequence.prompt_ids.size());
  absl::StatusOr<KvStore::Write> write = store.BeginWrite(sequence.lease, layer, 0, prompt);
  if (!write.ok()) return;
  int64_t position = 0;
  for (const BufferRef& ref : write->destination()) {
    for (size_t offset = 0; offset < ref.size; offset += 16, ++position) {
      HashModel::WriteRow(ref.data() + offset, layer, position, sequence.prompt_ids[position]);
    }
  }
  write->Commit().Wait().IgnoreError();
}

inline void FillHashKv(KvStore& store, const DecodeSequence& sequence) {
  for (int64_t layer = 0; layer < HashModel::kLayers; ++layer) FillHashKv(store, sequence, layer);
}

// What a sequence must emit, from its ids alone.
inline std::vector<int32_t> ExpectedTokens(const DecodeSequence& sequence) {
  std::vector<int32_t> ids = sequence.prompt_ids, output;
  ids.push_back(sequence.first_token);
  const auto stop = [&](int32_t id) { return std::count(sequence.stop_ids.begin(), sequence.stop_ids.end(), id) > 0; };
  while (!stop(ids.back()) && static_cast<int64_t>(ids.size() - sequence.prompt_ids.size()) < sequence.max_tokens) {
    const PenaltyCounts counts = CountPenalties(sequence.sampling, ids, sequence.prompt_ids.size());
    ids.push_back(SampleToken(HashModel::Expected(ids), sequence.sampling, counts, ids.size()));
    output.push_back(ids.back());
  }
  return output;
}

}  // namespace runahead::testing
