// A prompt's KV, logits and first token are bitwise the same alone and in company, through the whole stage. Where a
// device's products depend on how many rows they have, which is measured and printed, they are as near as the dtype's
// numerics have them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/test_device.h"
#include "tests/worker/prefill/held_worker.h"

namespace runahead {

struct PromptToShare {
  std::vector<int32_t> ids;
  SamplingOptions sampling;
};

// Of one row, of a row more than a page of them, and of more than the models' windows; every second one is drawn.
inline std::vector<PromptToShare> PromptsOf(const LoadedModel& loaded) {
  const std::vector<int64_t> lengths =
      TestDeviceIsSlow() ? std::vector<int64_t>{3, 17, 1} : std::vector<int64_t>{14, 1, 17, 60, 33};
  std::vector<PromptToShare> prompts;
  for (size_t i = 0; i < lengths.size(); ++i) {
    prompts.push_back({RandomIds(lengths[i], loaded.model->config().vocab, i + 1), EveryLogprob(loaded)});
    if (i % 2 == 1) prompts[i].sampling.temperature = 0.8f, prompts[i].sampling.seed = i;
  }
  return prompts;
}

// All of them in one pass.
inline std::vector<WholeRun> InOnePass(const LoadedModel& loaded, const std::vector<PromptToShare>& prompts) {
  HeldWorker held(loaded, 200);
  for (size_t i = 0; i < prompts.size(); ++i) {
    held.Start(held.Job(static_cast<JobId>(i + 1), prompts[i].ids, prompts[i].sampling));
  }
  held.Release();
  std::vector<WholeRun> runs;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto tokens = static_cast<int64_t>(prompts[i].ids.size());
    runs.push_back(AwaitWhole(loaded, held.chain, static_cast<JobId>(i + 1), 0, {0, tokens}));
  }
  EXPECT_EQ(held.worker.passes.all(), (std::vector<int64_t>{1, static_cast<int64_t>(prompts.size())}));
  return runs;
}

inline bool SameRun(const WholeRun& a, const WholeRun& b) {
  const auto logprobs = [](const WholeRun& run) {
    std::vector<std::pair<int32_t, float>> pairs;
    for (const TokenLogprobPair& pair : run.token.logprobs) pairs.emplace_back(pair.id, pair.logprob);
    return pairs;
  };
  return a.kv == b.kv && a.token.id == b.token.id && logprobs(a) == logprobs(b);
}

// The largest difference of two runs' log probabilities; those of the whole vocabulary are compared.
inline double LogprobsApart(const WholeRun& a, const WholeRun& b) {
  std::map<int32_t, double> of_b;
  for (const TokenLogprobPair& pair : b.token.logprobs) of_b[pair.id] = pair.logprob;
  double apart = 0;
  for (const TokenLogprobPair& pair : a.token.logprobs) {
    if (of_b.contains(pair.id)) apart = std::max(apart, std::abs(pair.logprob - of_b[pair.id]));
  }
  return apart;
}

// Whether a prompt's bits depend on how many rows its products have: its first tokens give others in a longer pass.
inline bool DependsOnRows(const LoadedModel& loaded, const PromptToShare& prompt) {
  const int64_t some = (static_cast<int64_t>(prompt.ids.size()) + 1) / 2;
  SequenceRunner whole(loaded, 100), part(loaded, 100);
  whole.Append(prompt.ids, /*batch_invariant=*/false, /*all_logits=*/false);
  part.Append({prompt.ids.begin(), prompt.ids.begin() + some}, false, false);
  for (int64_t layer = 0; layer < loaded.model->config().layers; ++layer) {
    const std::vector<float> all = whole.Kv(layer), first = part.Kv(layer);
    if (!std::equal(first.begin(), first.end(), all.begin())) return true;
  }
  return false;
}

// `within`: of log probabilities, where products depend on the number of rows.
inline void ExpectSameAloneAndTogether(const LoadedModel& loaded, const std::string& what, double within) {
  const std::vector<PromptToShare> prompts = PromptsOf(loaded);
  const std::vector<WholeRun> together = InOnePass(loaded, prompts);
  bool depends = false;
  for (const PromptToShare& prompt : prompts) depends = depends || DependsOnRows(loaded, prompt);
  double apart = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    SCOPED_TRACE(::testing::Message() << what << ", " << prompts[i].ids.size() << " tokens");
    const WholeRun alone = InOnePass(loaded, {prompts[i]})[0];
    EXPECT_TRUE(depends || SameRun(together[i], alone));
    apart = std::max(apart, LogprobsApart(together[i], alone));
  }
  EXPECT_LE(apart, within) << what;
  std::cout << what << ": products " << (depends ? "depend" : "do not depend")
            << " on the number of rows; log probabilities are " << apart << " apart\n";
}

}  // namespace runahead
