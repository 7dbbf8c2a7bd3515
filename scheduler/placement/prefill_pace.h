// What prompts took lately, for lines whose table knows no times. Pure.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "absl/time/time.h"

namespace runahead {

// For one thread at a time.
class PrefillPace {
 public:
  // A prompt of so many tokens took so long from its `width` workers' beginning to its first token.
  void Took(int64_t tokens, int64_t width, absl::Duration took) {
    if (tokens < 1 || width < 1 || took <= absl::ZeroDuration()) return;
    Class& own = classes_[ClassOf(tokens)];
    own.samples[own.seen++ % kRecent] = {tokens, took, took * width};
  }

  // What one of so many tokens takes at least: the least that prompts of its class, within a factor of two of its
  // length, took lately; where there was none, that of the next shorter ones. No more than any longer one took lately.
  // 0 where none of its class or shorter was seen.
  absl::Duration Expect(int64_t tokens) const {
    if (tokens < 1) return absl::ZeroDuration();
    const size_t own = ClassOf(tokens);
    absl::Duration least = absl::InfiniteDuration();
    for (size_t i = own + 1; i-- > 0 && least == absl::InfiniteDuration();) least = Least(i, tokens);
    if (least == absl::InfiniteDuration()) return absl::ZeroDuration();
    for (size_t i = own + 1; i < classes_.size(); ++i) least = std::min(least, Least(i, kAnyTokens));
    return least;
  }

  // What one of so many tokens takes on as many workers as such prompts had, as far as others tell: between two lengths
  // that were seen by the power of the length that joins them, beyond them in proportion to it. No prompt takes less
  // than one of kLeastTokens. 0 where none was seen.
  absl::Duration Estimate(int64_t tokens) const { return Estimate(tokens, &Sample::took); }

  // Likewise on one worker. That is what all workers of a chain took together, at most.
  absl::Duration EstimateOnOne(int64_t tokens) const { return Estimate(tokens, &Sample::on_one); }

  // A pass takes about as long, however few its tokens, below so many: it reads the weights once.
  static constexpr int64_t kLeastTokens = 32;

 private:
  // Few, so that a pace that has become slower shows soon.
  static constexpr uint64_t kRecent = 8;
  static constexpr int64_t kAnyTokens = std::numeric_limits<int64_t>::max();

  struct Sample {
    int64_t tokens = 0;
    absl::Duration took;
    absl::Duration on_one;  // worker, at most
  };
  struct Class {
    std::array<Sample, kRecent> samples = {};
    uint64_t seen = 0;
  };

  absl::Duration Estimate(int64_t tokens, absl::Duration Sample::*time) const {
    const Sample* shorter = nullptr;
    const Sample* longer = nullptr;
    for (const Class& one : classes_) {
      const Sample* const fastest = Fastest(one, time);
      if (fastest == nullptr) continue;
      if (fastest->tokens <= tokens) {
        shorter = fastest;
      } else if (longer == nullptr) {
        longer = fastest;
      }
    }
    const auto proportion = [tokens](const Sample& seen) {
      return static_cast<double>(std::max(tokens, kLeastTokens)) /
             static_cast<double>(std::max(seen.tokens, kLeastTokens));
    };
    if (shorter != nullptr && longer != nullptr && shorter->*time < longer->*time) {
      const double power = std::log(absl::FDivDuration(longer->*time, shorter->*time)) /
                           std::log(static_cast<double>(longer->tokens) / static_cast<double>(shorter->tokens));
      return shorter->*time * std::pow(static_cast<double>(tokens) / static_cast<double>(shorter->tokens), power);
    }
    if (shorter != nullptr) return longer != nullptr ? longer->*time : shorter->*time * proportion(*shorter);
    return longer != nullptr ? longer->*time * proportion(*longer) : absl::ZeroDuration();
  }

  // The least that a prompt of so many tokens takes, judged by each recent prompt of the class. Infinity where there
  // was none.
  absl::Duration Least(size_t of_class, int64_t tokens) const {
    const Class& seen = classes_[of_class];
    absl::Duration least = absl::InfiniteDuration();
    for (uint64_t i = 0; i < std::min(seen.seen, kRecent); ++i) {
      const Sample& sample = seen.samples[i];
      // Time grows with the length, and no faster than with its square: attention does that.
      const double share = std::min(1.0, static_cast<double>(tokens) / static_cast<double>(sample.tokens));
      least = std::min(least, sample.took * (share * share));
    }
    return least;
  }

  // The recent sample of the class that took least for its length; null where there was none.
  static const Sample* Fastest(const Class& seen, absl::Duration Sample::*time) {
    const auto end = seen.samples.begin() + std::min(seen.seen, kRecent);
    const auto fastest = std::min_element(seen.samples.begin(), end, [time](const Sample& a, const Sample& b) {
      return a.*time * static_cast<double>(b.tokens) < b.*time * static_cast<double>(a.tokens);
    });
    return fastest == end ? nullptr : &*fastest;
  }

  static size_t ClassOf(int64_t tokens) { return static_cast<size_t>(std::bit_width(static_cast<uint64_t>(tokens))); }

  std::array<Class, 65> classes_ = {};  // by bit width of the length
};

}  // namespace runahead
