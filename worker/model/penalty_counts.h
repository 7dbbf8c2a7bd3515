// What penalties need to know of a sequence: which ids it has, and how often its output has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"

namespace runahead {

struct SamplingOptions;

// Kept beside a sequence and brought up to date with every token, so that a step never looks at a whole prompt again.
// Not thread-safe. Memory grows with the different ids, never with the length.
class PenaltyCounts {
 public:
  struct Entry {
    int32_t id = 0;
    int32_t in_output = 0;  // 0: in the prompt only
  };

  // Of an empty sequence, for options without penalties.
  PenaltyCounts() = default;
  // Of a prompt without output. What `options` cannot penalise is left out: the prompt where nothing penalises
  // repetition, everything where there are no penalties. Linear in the prompt: milliseconds for a long one.
  PenaltyCounts(const SamplingOptions& options, absl::Span<const int32_t> prompt);

  // The next token of the output.
  void AddOutput(int32_t id);

  // What Device::Sample counts for an id: 0 for one that the sequence does not have, else 1 + how often its output has
  // it.
  int32_t CountOf(int32_t id) const;
  // The entry of the last token of the output; id -1 where nothing is counted yet.
  Entry last() const { return last_ < 0 ? Entry{-1, 0} : entries_[last_]; }
  // Every id at most once, in any order.
  absl::Span<const Entry> entries() const { return entries_; }

 private:
  size_t IndexOf(int32_t id);

  bool penalised_ = false;
  int64_t last_ = -1;  // in entries_
  std::vector<Entry> entries_;
  absl::flat_hash_map<int32_t, size_t> index_;  // into entries_
};

}  // namespace runahead
