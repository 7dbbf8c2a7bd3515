#include "client/profile/line_probe.h"

#include <algorithm>

#include "client/measure/chain_guess.h"
#include "scheduler/partition/partition_table.h"

namespace runahead {
namespace {

// Below about this length fixed costs are all that a time shows.
constexpr int64_t kShortest = 64;
// Four constants and a residual to judge them by.
constexpr int64_t kLeastSpan = 16;

std::vector<int> ChainWidths(int workers) {
  std::vector<int> widths;
  for (int width = 2; width < workers; width *= 2) widths.push_back(width);
  if (workers > 1) widths.push_back(workers);
  return widths;
}

}  // namespace

std::vector<int64_t> ProbeLengths(int64_t longest, int workers) {
  std::vector<int64_t> lengths;
  int64_t length = std::max<int64_t>(2 * workers, std::min(kShortest, longest / kLeastSpan));
  for (; length <= longest; length *= 2) lengths.push_back(length);
  if (longest >= lengths.back() * 3 / 2) lengths.push_back(longest);
  return lengths;
}

std::vector<Probe> ProbesOf(absl::Span<const int64_t> lengths, int workers) {
  std::vector<Probe> probes;
  const int64_t shortest = lengths.front();
  const int64_t medium = lengths[lengths.size() * 2 / 3];
  for (const int64_t tokens : lengths) probes.push_back({Probe::Kind::kSingle, 0, tokens, {tokens}});
  for (int i = 1; i < workers; ++i) {
    probes.push_back({Probe::Kind::kTail, i, medium, HeavyParts(medium, i, i + 1)});
  }
  for (int i = 0; i + 1 < workers; ++i) {
    for (const int64_t tokens : {shortest, medium}) {
      probes.push_back({Probe::Kind::kLink, i, tokens, HeavyParts(tokens, i, i + 2)});
      if (shortest == medium) break;
    }
  }
  for (const int width : ChainWidths(workers)) {
    for (const int64_t tokens : lengths.subspan(lengths.size() / 2)) {
      probes.push_back({Probe::Kind::kChain, width, tokens, *EvenParts(tokens, width)});
    }
  }
  return probes;
}

}  // namespace runahead
