// A sequence that a DecodeEngine has, for the engine's own sources.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "scheduler/batching/parking.h"
#include "scheduler/batching/row_plan.h"
#include "worker/decode/engine.h"

namespace runahead {

// Of a sequence that is to be another worker's.
struct DecodeEngine::Moving {
  std::shared_ptr<SequenceCarrier> carrier;
  int64_t most = 0;       // tokens whose KV the other worker takes
  uint64_t move = 0;      // which one it is: answers to an earlier one may come late
  int64_t sent = 0;       // tokens, from the first on, whose KV it has
  int64_t under_way = 0;  // the same once what is under way has come
  int rounds = 0;
  int64_t bytes = 0;
  absl::Time since;
  std::optional<absl::Time> stopped = {};  // it stands still since
};

struct DecodeEngine::Active {
  DecodeSequence request;
  std::shared_ptr<DecodeSink> sink;
  int64_t computed = 0;           // positions whose KV is in the store, from the first on; once it is complete
  int64_t known = 0;              // positions that had been computed before it was parked, from the first on
  int64_t guaranteed = 0;         // the length up to which it is not parked again; 0: it never was
  bool kept_prompt = false;       // KeepPrompt has been called
  PenaltyCounts counts;           // of prompt and output so far
  SequenceMask mask;              // of the output so far
  bool late = false;              // its mask was not made when the last pass was to draw its token
  int late_passes = 0;            // so many passes, one after the other
  TokenSampler::SequenceRow row;  // of the sampler, from the join on
  std::optional<KvStore::Sequence> kv;
  std::unique_ptr<Moving> moving;  // null: it is not to move
  absl::Time since;                // for traces: added, KV complete, parked, or made to stand still

  // On the thread that adds the sequence: counting a long prompt takes milliseconds, for which the loop would
  // hold up all sequences.
  Active(DecodeSequence sequence, std::shared_ptr<DecodeSink> to, int64_t vocab,
         std::shared_ptr<const WantedGrammar> grammar)
      : request(std::move(sequence)),
        sink(std::move(to)),
        counts(request.sampling, request.prompt_ids),
        mask(std::exchange(request.rules, {}), vocab, std::move(grammar)) {
    for (const int32_t id : request.output_ids) Count(id);
  }
  // Records for the trace what the sequence waited for until `now`.
  void Waited(const char* span, absl::Time now) {
    if (request.spans != nullptr) request.spans->Add(span, -1, since, now);
    since = now;
  }
  void Append(int32_t token) {
    request.output_ids.push_back(token);
    Count(token);
  }
  void Count(int32_t token) {
    counts.AddOutput(token);
    mask.Append(token);
  }
  int64_t prompt() const { return static_cast<int64_t>(request.prompt_ids.size()); }
  int64_t output() const { return static_cast<int64_t>(request.output_ids.size()); }
  int64_t length() const { return prompt() + output(); }  // so far
  int32_t TokenAt(int64_t position) const {
    return position < prompt() ? request.prompt_ids[position] : request.output_ids[position - prompt()];
  }
  PendingRows Pending() const {
    return {.prompt = std::max<int64_t>(0, prompt() - computed), .output = length() - std::max(computed, prompt())};
  }
  // It was late twice, and would be again. What takes a pass and a half is drawn by the second one.
  bool AwaitsMask() const { return late_passes > 1 && !mask.made(); }
  // How many of the next `rows` positions had been computed before it was parked.
  int64_t Again(int64_t rows) const { return std::clamp<int64_t>(known - computed, 0, rows); }
  // How far its memory is to go when it comes back.
  int64_t ComesBackWith() const { return std::min(kv->total_tokens(), length() + kGuaranteedTokens); }
  bool Finished() const {
    const std::vector<int32_t>& stops = request.stop_ids;
    if (output() == 0) return false;
    return output() >= request.max_tokens ||
           std::find(stops.begin(), stops.end(), request.output_ids.back()) != stops.end();
  }
};

// Of the next step, by running_: what is to be computed of each, and how many rows of that the step takes.
struct DecodeEngine::Grants {
  std::vector<PendingRows> pending;
  std::vector<int64_t> granted;
};

template <typename Unit>
void DecodeEngine::Measured(double work, const Unit& unit) {
  progress_->Begin(work);
  unit();
  progress_->End();
}

}  // namespace runahead
