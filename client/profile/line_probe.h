// Which partitions to time on a line of workers to learn what the model costs there. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace runahead {

struct Probe {
  enum class Kind {
    kSingle,  // all on the head: fixed, linear and attention
    kTail,    // all but a token each on worker `number`, the last of its chain: how fast it is, whatever the links
    kLink,    // all but a token each on worker `number`, and one more worker behind it: the link between the two
    kChain,   // even parts: what working together costs, and how good predictions are
  };
  Kind kind = Kind::kSingle;
  int number = 0;
  int64_t tokens = 0;
  std::vector<int64_t> parts;  // adding up to `tokens`
};

// The lengths to try, rising: from 64 (or less where prompts may only be short) to about `longest` by doubling.
// `longest` >= 2 * workers.
std::vector<int64_t> ProbeLengths(int64_t longest, int workers);

// `lengths`: rising, at least one, each at least 2 * workers. The first worker alone runs all of them. Each other
// worker runs the length that stands two thirds up the list; each link that one and the shortest. Chains of 2, 4, 8, ..
// and of all workers run the longer half.
std::vector<Probe> ProbesOf(absl::Span<const int64_t> lengths, int workers);

}  // namespace runahead
