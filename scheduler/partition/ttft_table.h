// How long prompts of given lengths take on chains of given widths: what widths are chosen by. Pure data: immutable,
// hence safe for any number of threads.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"

namespace runahead {

// One measured (or predicted) time to first token on idle workers.
struct TtftEntry {
  int width = 0;       // workers of the chain
  int64_t tokens = 0;  // of the prompt
  double seconds = 0;  // from the start of its first part to the first token
};

class TtftTable {
 public:
  // Knows nothing.
  TtftTable() = default;

  // INVALID_ARGUMENT names the entry: width or tokens below 1, seconds not above 0 or not finite, or a second entry for
  // the same width and length.
  static absl::StatusOr<TtftTable> Create(const std::vector<TtftEntry>& entries);

  // The widths that it knows, ascending. Without width 1 there is nothing to compare with: empty() is true then.
  std::vector<int> widths() const;
  bool knows(int width) const { return by_width_.find(width) != by_width_.end(); }
  bool empty() const { return !knows(1); }

  // Seconds for tokens >= 1 on a width that is known. Between two lengths the time that a token takes beyond the start
  // grows evenly, for attention makes time quadratic in tokens; where it falls, on a straight line. Below the shortest
  // length what that one took, for short prompts wait on reading the weights, not on tokens; beyond the longest the
  // time a token takes grows on as it did between the two longest, or stays where there is one.
  double Seconds(int64_t tokens, int width) const;

  // The same less the start, for tokens >= 0: 0 for none, then on a straight line to the shortest length. So the
  // difference of two lengths is what the tokens between them take, however short the first is. The start is what no
  // tokens would take by the two shortest lengths: 0 where there is one.
  double SecondsOfTokens(int64_t tokens, int width) const;

 private:
  using Times = std::map<int64_t, double>;  // tokens -> seconds

  static double Start(const Times& times);

  std::map<int, Times> by_width_;
};

}  // namespace runahead
