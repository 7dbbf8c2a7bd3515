// By how much longer prompts, or their rests, take lately than was expected, beside sequences that decode. Pure.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace runahead {

// For one thread at a time.
class PaceBeside {
 public:
  // What was expected to take `expected` took `took`, beside so many sequences that decode. That counts for half of
  // what is believed of as many, within a factor of two, and for kMost times at most: one that was held up moves no
  // others away for minutes. Below kLeast what goes to and fro counts more than what is computed: nothing is learned.
  void Took(int64_t beside, absl::Duration expected, absl::Duration took, absl::Time now) {
    if (beside < 0 || expected < kLeast || took <= absl::ZeroDuration()) return;
    Class& own = classes_[ClassOf(beside)];
    const double most = std::log(kMost);
    const double seen = std::clamp(std::log(absl::FDivDuration(took, expected)), -most, most);
    own.log_ratio = (LogRatio(own, now) + seen) / 2;
    own.since = now;
  }

  // By how much longer it takes than expected. Where nothing was seen beside so many, as beside fewer; 1 where nothing
  // was seen of these, either.
  double Ratio(int64_t beside, absl::Time now) const {
    for (size_t i = ClassOf(std::max<int64_t>(0, beside)) + 1; i-- > 0;) {
      if (classes_[i].since != absl::InfinitePast()) return std::exp(LogRatio(classes_[i], now));
    }
    return 1;
  }

 private:
  static constexpr double kMost = 8;
  static constexpr absl::Duration kLeast = absl::Milliseconds(1);
  // Half of it is forgotten after so long: what was slow for a while is tried again.
  static constexpr absl::Duration kHalfLife = absl::Minutes(1);

  struct Class {
    double log_ratio = 0;
    absl::Time since = absl::InfinitePast();
  };

  static double LogRatio(const Class& of, absl::Time now) {
    if (of.since == absl::InfinitePast()) return 0;
    return of.log_ratio * std::exp2(-absl::FDivDuration(std::max(absl::ZeroDuration(), now - of.since), kHalfLife));
  }
  static size_t ClassOf(int64_t beside) { return static_cast<size_t>(std::bit_width(static_cast<uint64_t>(beside))); }

  std::array<Class, 65> classes_ = {};  // by bit width of the number
};

}  // namespace runahead
