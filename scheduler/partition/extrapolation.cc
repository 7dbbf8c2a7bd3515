#include "scheduler/partition/extrapolation.h"

#include <algorithm>
#include <cstddef>

namespace runahead {
namespace {

// What the trend from `from` to `to` adds to the fractions of `to` at `tokens` beyond it.
std::vector<double> Foretell(const SearchedLength& from, const SearchedLength& to, int64_t tokens) {
  const auto x = static_cast<double>(tokens), near = static_cast<double>(to.tokens);
  const auto far = static_cast<double>(from.tokens);
  const double steps = tokens < to.tokens ? (near - x) / (far - near) : (1 / near - 1 / x) / (1 / far - 1 / near);
  std::vector<double> added(to.fractions.size());
  for (size_t i = 0; i < added.size(); ++i) added[i] = steps * (to.fractions[i] - from.fractions[i]);
  return added;
}

// How much of what was foretold came about.
double Trust(absl::Span<const double> foretold, absl::Span<const double> before, absl::Span<const double> after) {
  double common = 0, square = 0;
  for (size_t i = 0; i < foretold.size(); ++i) {
    common += foretold[i] * (after[i] - before[i]);
    square += foretold[i] * foretold[i];
  }
  return square > 0 ? std::clamp(common / square, 0.0, 1.0) : 0.0;
}

// The largest share, up to 1, of `added` that `fractions` can take.
double Bearable(absl::Span<const double> fractions, absl::Span<const double> added) {
  double share = 1;
  for (size_t i = 0; i < fractions.size(); ++i) {
    if (added[i] < 0) share = std::min(share, -0.5 * fractions[i] / added[i]);
    if (i + 1 == fractions.size()) break;
    const double apart = fractions[i] - fractions[i + 1];
    const double apart_added = added[i] - added[i + 1];
    if (apart * apart_added < 0) share = std::min(share, -apart / apart_added);
  }
  return share;
}

}  // namespace

std::vector<double> ExtrapolateFractions(const SearchedLength& inner, const SearchedLength& middle,
                                         const SearchedLength& outer, int64_t tokens) {
  const double trust = Trust(Foretell(inner, middle, outer.tokens), middle.fractions, outer.fractions);
  std::vector<double> added = Foretell(middle, outer, tokens);
  for (double& value : added) value *= trust;
  const double share = Bearable(outer.fractions, added);
  std::vector<double> fractions(outer.fractions.begin(), outer.fractions.end());
  for (size_t i = 0; i < fractions.size(); ++i) fractions[i] += share * added[i];
  return fractions;
}

}  // namespace runahead
