// A prompt as prefill computes it, and as decode does where KV of its first tokens is there.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "tests/testing/device_tensor.h"
#include "tests/testing/model_fixture.h"
#include "tests/worker/decode/made_up_kv.h"
#include "worker/decode/decode_loop.h"
#include "worker/kv/store.h"

namespace runahead {

struct ComputedPrompt {
  std::vector<float> logits;           // of its last token
  std::vector<std::vector<float>> kv;  // by layer: [tokens * 2 * kv_dim]
};

inline std::vector<int32_t> Part(const std::vector<int32_t>& ids, int64_t begin, int64_t end) {
  return {ids.begin() + begin, ids.begin() + end};
}

// In passes that end at `cuts`, the last one at the prompt's end: what a prefill worker gives, whatever the cuts.
inline ComputedPrompt PrefillInPasses(const LoadedModel& loaded, const std::vector<int32_t>& ids,
                                      const std::vector<int64_t>& cuts) {
  SequenceRunner runner(loaded, static_cast<int64_t>(ids.size()));
  ComputedPrompt prompt;
  int64_t begin = 0;
  for (const int64_t end : cuts) {
    prompt.logits = runner.Append(Part(ids, begin, end), /*batch_invariant=*/false, /*all_logits=*/false).back();
    begin = end;
  }
  for (int64_t layer = 0; layer < loaded.model->config().layers; ++layer) prompt.kv.push_back(runner.Kv(layer));
  return prompt;
}

// Prompts in a store into which the first cuts.front() tokens of each are handed off, as `known` has them; the rows
// behind them are computed in passes of all prompts together, which end at `cuts`.
inline std::vector<ComputedPrompt> ContinueInStore(const LoadedModel& loaded,
                                                   const std::vector<std::vector<int32_t>>& prompts,
                                                   const std::vector<ComputedPrompt>& known,
                                                   const std::vector<int64_t>& cuts) {
  const Model& model = *loaded.model;
  const int64_t layers = model.config().layers, tokens = cuts.back(), columns = 2 * model.config().kv_dim();
  KvStoreOptions options{.layers = layers, .row_bytes = model.kv_row_bytes()};
  options.capacity_tokens = static_cast<int64_t>(prompts.size()) * KvBlocksFor(tokens + 1) * kKvBlockTokens;
  const std::unique_ptr<KvStore> store = *KvStore::Create(options, *loaded.device, RealClock());
  std::vector<KvStore::Sequence> sequences;
  for (const ComputedPrompt& prompt : known) {
    const LeaseId lease =
        *store->Reserve({.prompt_tokens = tokens, .total_tokens = tokens + 1, .handed_tokens = cuts.front()});
    for (int64_t layer = 0; layer < layers && cuts.front() > 0; ++layer) {
      const float* from = prompt.kv[layer].data();
      WriteRows(*store, lease, layer, cuts.front(), model.kv_dtype(), [&] { return *from++; });
    }
    sequences.push_back(*store->Open(lease));
  }
  DeviceMemory memory(loaded.device);
  DecodeLoop loop(model, *loaded.device, *store, memory.stream(), RowKind::kPrompt);
  std::vector<ComputedPrompt> computed(prompts.size());
  for (size_t pass = 1; pass < cuts.size(); ++pass) {
    std::vector<DecodeRow> rows;
    for (size_t i = 0; i < prompts.size(); ++i) {
      for (int64_t at = cuts[pass - 1]; at < cuts[pass]; ++at) {
        rows.push_back({.sequence = &sequences[i],
                        .token = prompts[i][at],
                        .position = at,
                        .wants_logits = pass + 1 == cuts.size() && at + 1 == tokens});
      }
    }
    const absl::StatusOr<Tensor> logits = loop.Step(rows);
    EXPECT_TRUE(logits.ok()) << logits.status();
    memory.Finish();
    for (int64_t i = 0; logits.ok() && i < logits->rows; ++i) computed[i].logits = memory.Read(logits->Rows(i, 1));
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    for (int64_t layer = 0; layer < layers; ++layer) {
      std::vector<float>& all = computed[i].kv.emplace_back();
      for (const KvSpan& span : store->arena().Spans(sequences[i].blocks(), layer, 0, tokens)) {
        const auto count = static_cast<int64_t>(span.rows.size) / model.kv_row_bytes();
        const std::vector<float> more = memory.Read(MakeTensor(span.rows, model.kv_dtype(), count, columns));
        all.insert(all.end(), more.begin(), more.end());
      }
    }
  }
  return computed;
}

inline bool SameBits(const ComputedPrompt& a, const ComputedPrompt& b) {
  return a.logits == b.logits && a.kv == b.kv;
}

// The largest difference of two prompts' logits, over the largest magnitude.
inline double LogitsApart(const ComputedPrompt& a, const ComputedPrompt& b) {
  double apart = 0, size = 0;
  for (size_t i = 0; i < a.logits.size(); ++i) {
    apart = std::max(apart, std::abs(static_cast<double>(a.logits[i]) - b.logits[i]));
    size = std::max(size, std::abs(static_cast<double>(b.logits[i])));
  }
  return apart / size;
}

// Rows behind cuts.front(), computed in passes that end at `cuts`, alone and beside another prompt's, are those of one
// prefill pass over the whole prompt: bitwise where prefill does not depend on the cut, which is measured and printed,
// else within `within` of the largest logit.
inline void ExpectRowsOfPrefill(const LoadedModel& loaded, const std::vector<int64_t>& cuts, double within,
                                const std::string& what) {
  const int64_t tokens = cuts.back();
  std::vector<std::vector<int32_t>> ids;
  std::vector<ComputedPrompt> whole;
  bool depends_on_cut = false;
  for (const uint64_t seed : {1, 2}) {
    ids.push_back(RandomIds(tokens, loaded.model->config().vocab, seed));
    whole.push_back(PrefillInPasses(loaded, ids.back(), {tokens}));
    std::vector<int64_t> passes = cuts;
    if (passes.front() == 0) passes.erase(passes.begin());
    depends_on_cut = depends_on_cut || !SameBits(PrefillInPasses(loaded, ids.back(), passes), whole.back());
  }
  std::vector<ComputedPrompt> computed = ContinueInStore(loaded, {ids[0]}, {whole[0]}, cuts);
  const std::vector<ComputedPrompt> together = ContinueInStore(loaded, ids, whole, cuts);
  computed.insert(computed.end(), together.begin(), together.end());
  double apart = 0;
  for (size_t i = 0; i < computed.size(); ++i) {
    SCOPED_TRACE(::testing::Message() << what << ", from " << cuts.front() << ", run " << i);
    const ComputedPrompt& expected = whole[i == 0 ? 0 : i - 1];
    apart = std::max(apart, LogitsApart(computed[i], expected));
    EXPECT_TRUE(depends_on_cut || SameBits(computed[i], expected));
    EXPECT_LE(LogitsApart(computed[i], expected), within);
  }
  std::cout << what << ", rows from " << cuts.front() << " of " << tokens << ": prefill "
            << (depends_on_cut ? "depends" : "does not depend") << " on the cut; logits are " << apart
            << " of the largest apart\n";
}

}  // namespace runahead
