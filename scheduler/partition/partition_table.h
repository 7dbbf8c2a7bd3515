// How a prompt is cut among the workers of a chain: a lookup table by context length, searched off line, with linear
// interpolation between its lengths. Pure data: immutable, hence safe for any number of threads.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/partition/ttft_table.h"

namespace runahead {

// What the search found for one length and one width.
struct PartitionEntry {
  int width = 0;                  // workers of the chain
  int64_t tokens = 0;             // context length that was searched
  std::vector<double> fractions;  // [width], head first, each > 0, adding up to 1
  double ttft_s = 0;              // time to first token on idle workers, measured or else predicted; 0: not known
};

// How a partition came about.
enum class PartitionSource {
  kSearched,      // the table holds this very length
  kInterpolated,  // between the two nearest lengths
  kExtrapolated,  // beyond the table's ends, following its trend (extrapolation.h)
  kClamped,       // beyond the ends of a table with less than three lengths: the nearest length's fractions
  kEven,          // the table has nothing for this width
};

struct Partition {
  std::vector<int64_t> parts;  // [width] tokens, each >= 1, adding up exactly
  PartitionSource source = PartitionSource::kEven;
};

class PartitionTable {
 public:
  // The empty table: even parts everywhere.
  PartitionTable() = default;

  // INVALID_ARGUMENT names the entry ("entries[3]") and what is wrong with it: width < 1, tokens < width, a number of
  // fractions other than width, one that is not above 0, a sum off 1 by more than 0.001, or a second entry for the
  // same width and length, or a time that is none. Entries may come in any order; small errors of the sum are spread
  // evenly. `block` >= 1 is RoundParts', for parts that are not those of an entry: these were searched as they are.
  static absl::StatusOr<PartitionTable> Create(std::vector<PartitionEntry> entries, int64_t block = 1);

  // Fractions for `tokens` on `width` workers, before rounding to whole tokens. Width >= 1.
  std::pair<std::vector<double>, PartitionSource> Fractions(int64_t tokens, int width) const;

  // The same in whole tokens. INVALID_ARGUMENT unless 1 <= width <= tokens.
  absl::StatusOr<Partition> Lookup(int64_t tokens, int width) const;

  // The tokens behind `known` ones whose KV the chain gets, in parts that take one worker the same shares of its time
  // as the parts of a prompt of so many tokens alone, or of more where so few tell nothing; equally long ones where the
  // table has nothing for this width. Even where times() tells nothing of one worker. INVALID_ARGUMENT unless 0 <=
  // known and 1 <= width <= tokens - known.
  absl::StatusOr<std::vector<int64_t>> PartsBehind(int64_t known, int64_t tokens, int width) const;

  bool empty() const { return by_width_.empty(); }

  // What the entries say of times; empty() unless a single worker's are among them.
  const TtftTable& times() const { return times_; }

 private:
  // So many tokens, or the shortest length of the width from which on its time rises with the tokens, if that is more.
  int64_t TellingLength(int64_t tokens, int width) const;
  // Of a prompt of so many tokens, what part each worker's tokens take of the time of all on one worker.
  std::vector<double> SharesOfTime(int64_t tokens, int width) const;

  using Nodes = std::map<int64_t, std::vector<double>>;  // tokens -> fractions

  std::map<int, Nodes> by_width_;
  TtftTable times_;
  int64_t block_ = 1;
};

// Parts that differ by at most one token, the longer ones first. INVALID_ARGUMENT unless 1 <= width <= tokens.
absl::StatusOr<std::vector<int64_t>> EvenParts(int64_t tokens, int width);

// Parts are rounded to a kernel's blocks only when all have at least so many: then less than a sixteenth of a part
// changes hands.
inline constexpr int64_t kBlocksOfLongPart = 16;

// Whole tokens nearest to `fractions` (each > 0, adding up to 1), by largest remainder, then at least 1 each, taken
// from the largest part. Needs tokens >= fractions.size() >= 1, block >= 1.
// `block`: rows that the kernels compute together, so that one row more than a multiple costs a whole block. Where all
// parts are long, the boundaries between them go to the nearest multiples instead: all parts but the last fill their
// blocks and take no more of them than without; the last is within half a block of its exact share.
std::vector<int64_t> RoundParts(int64_t tokens, absl::Span<const double> fractions, int64_t block = 1);

}  // namespace runahead
