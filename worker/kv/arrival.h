// What of a sequence has arrived: which kind of which tokens in which layer. Knows neither memory nor leases.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "worker/kv/interval_set.h"

namespace runahead {

// What rows hold: K and V, or the normed inputs from which both can be computed again (KVPR's X).
enum class SliceKind { kKv, kX };

// Not thread-safe: the owner's lock guards it. Tokens count from the sequence's first; ranges are [begin, end), not
// empty, and lie in the prompt.
class Arrival {
 public:
  // Of `tokens` tokens, as a rule a prompt's: complete when each of `kinds` has come for all of it in every layer.
  // Other kinds are not to be asked for. KV before `kv_from` is not waited for, nor is anything of the first
  // hidden[layer] tokens, which nobody sees in that layer (without `hidden`: none): they count as come from the
  // beginning.
  Arrival(int64_t layers, int64_t tokens, std::vector<SliceKind> kinds = {SliceKind::kKv}, int64_t kv_from = 0,
          std::vector<int64_t> hidden = {});

  // Only the first `tokens` tokens come: the others count as come, and are not settled by it. While no write is under
  // way. At least what is fixed.
  void EndAt(int64_t tokens);
  // How many tokens from the first on come, of any kind: all unless EndAt said less.
  int64_t end() const { return end_; }
  int64_t tokens() const { return tokens_; }
  bool under_way() const { return !under_way_.empty(); }  // some write is

  const std::vector<SliceKind>& kinds() const { return kinds_; }
  bool Has(SliceKind kind) const;  // is among kinds()
  int64_t kv_from() const { return kv_from_; }
  bool Covers(SliceKind kind, int64_t layer, int64_t begin, int64_t end) const;
  // From now on bytes for the range are under way. The write, for End; nothing where a range that overlaps is under way
  // already.
  std::optional<uint64_t> Begin(SliceKind kind, int64_t layer, int64_t begin, int64_t end);
  // Tokens, summed over the layers, that the kind has yet to come for.
  int64_t Missing(SliceKind kind) const;
  // What a write brought that had not come before.
  struct Came {
    SliceKind kind = SliceKind::kKv;
    int64_t tokens = 0;
  };
  // The bytes of a write are in, or do not come.
  Came End(uint64_t write, bool arrived);

  bool complete() const { return whole_ == static_cast<int64_t>(covered_.size()); }
  // Layers in which all kinds cover the prompt.
  int64_t layers_complete() const;

  // How many tokens from the first on have come in every kind and layer, and no write under way touches.
  int64_t Settled() const;
  // As many of them as `other`, of a prompt that begins alike, needs no more of than was waited for here.
  int64_t SettledFor(const Arrival& other) const;
  // The first `tokens` tokens have come in every kind and layer, from wherever, and their owner writes them no more:
  // see fixed(). Less than before changes nothing.
  void Fix(int64_t tokens);
  int64_t fixed() const { return fixed_; }

 private:
  struct UnderWay {
    uint64_t write = 0;
    size_t set = 0;  // of covered_
    int64_t begin = 0, end = 0;
  };
  // The place of a kind and layer in covered_.
  size_t SetOf(SliceKind kind, int64_t layer) const;
  void Add(size_t set, int64_t begin, int64_t end);

  int64_t layers_, tokens_, kv_from_, end_;
  std::vector<SliceKind> kinds_;
  std::vector<int64_t> hidden_;       // [layers]
  std::vector<IntervalSet> covered_;  // [kinds][layers]
  std::vector<UnderWay> under_way_;
  uint64_t next_write_ = 1;
  int64_t whole_ = 0;  // of covered_, those that cover the prompt
  int64_t fixed_ = 0;
};

}  // namespace runahead
