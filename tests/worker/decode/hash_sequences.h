// Sequences for the HashModel: their KV in the store as a hand-off would bring it, and the tokens they must give.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/testing/count_penalties.h"
#include "tests/testing/plain_rules.h"
#include "tests/testing/sample_token.h"
#include "tests/worker/decode/hash_model.h"
#include "worker/decode/sequence.h"
#include "worker/kv/store.h"

namespace runahead::testing {

// Random ids and a lease for them; no KV yet.
inline DecodeSequence MakeHashSequence(KvStore& store, int seed, const LeaseRequest& request) {
  std::mt19937 random(seed);
  DecodeSequence sequence;
  for (int64_t i = 0; i < request.prompt_tokens; ++i) sequence.prompt_ids.push_back(random() % (HashModel::kVocab - 1));
  sequence.output_ids = {static_cast<int32_t>(random() % (HashModel::kVocab - 1))};
  sequence.max_tokens = request.total_tokens - request.prompt_tokens;
  const absl::StatusOr<LeaseId> lease = store.Reserve(request);
  RUNAHEAD_CHECK(lease.ok());
  sequence.lease = *lease;
  return sequence;
}
// Of whose prompt the first `handed` tokens are handed off.
inline DecodeSequence MakeHashSequence(KvStore& store, int seed, int64_t prompt, int64_t max_tokens, int64_t handed) {
  LeaseRequest request{.prompt_tokens = prompt, .total_tokens = prompt + max_tokens};
  if (handed < prompt) request.handed_tokens = handed;
  return MakeHashSequence(store, seed, request);
}
inline DecodeSequence MakeHashSequence(KvStore& store, int seed, int64_t prompt, int64_t max_tokens) {
  return MakeHashSequence(store, seed, prompt, max_tokens, prompt);
}

// Writes KV of the prompt's tokens that are handed off, behind those that are known. It does nothing when the lease is
// gone.
inline void FillHashKv(KvStore& store, const DecodeSequence& sequence, int64_t layer) {
  const absl::StatusOr<KvStore::Size> size = store.SizeOf(sequence.lease);
  if (!size.ok() || size->handed_tokens == size->known_tokens) return;
  int64_t position = size->known_tokens;
  absl::StatusOr<KvStore::Write> write = store.BeginWrite(sequence.lease, layer, position, size->handed_tokens);
  if (!write.ok()) return;
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
  ids.insert(ids.end(), sequence.output_ids.begin(), sequence.output_ids.end());
  const auto count = [&] { return static_cast<int64_t>(ids.size() - sequence.prompt_ids.size()); };
  const auto stopped = [&] {
    return count() > 0 && std::count(sequence.stop_ids.begin(), sequence.stop_ids.end(), ids.back()) > 0;
  };
  while (!stopped() && count() < sequence.max_tokens) {
    const PenaltyCounts counts = CountPenalties(sequence.sampling, ids, sequence.prompt_ids.size());
    const absl::Span<const int32_t> so_far = absl::MakeConstSpan(ids).subspan(sequence.prompt_ids.size());
    const std::vector<uint32_t> mask = PlainMask(sequence.rules, so_far, HashModel::kVocab);
    ids.push_back(SampleToken(HashModel::Expected(ids), sequence.sampling, counts, ids.size(), mask));
    output.push_back(ids.back());
  }
  return output;
}

}  // namespace runahead::testing
