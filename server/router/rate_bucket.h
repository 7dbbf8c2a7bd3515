// How much may be taken a minute. Pure: time is an argument.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace runahead {

// A bucket that holds what may be taken in a minute, full at first, and fills evenly. So in any minute at most twice as
// much is taken, and in each of many that follow each other what it holds. For one thread at a time; times do not go
// back.
class RateBucket {
 public:
  // From now on so much a minute; 0 is no limit. What was taken before counts on, up to a minute's worth.
  void SetRate(int64_t per_minute, absl::Time now) {
    Fill(now);
    per_minute_ = per_minute;
    taken_ = std::min(taken_, static_cast<double>(per_minute));
  }
  int64_t per_minute() const { return per_minute_; }

  // Whether so much is ever there.
  bool Holds(int64_t amount) const { return per_minute_ == 0 || amount <= per_minute_; }

  // Takes it, and gives 0; or else takes nothing, and gives the time after which it is there, unless others take it.
  // `amount` is what it Holds.
  absl::Duration Take(int64_t amount, absl::Time now) {
    Fill(now);
    if (per_minute_ > 0) {
      const double lacking = taken_ + static_cast<double>(amount) - static_cast<double>(per_minute_);
      // To the next millisecond, so that whoever comes then is not refused for a rounding.
      if (lacking > kRounding) {
        return absl::Ceil(absl::Minutes(1) * (lacking / static_cast<double>(per_minute_)), absl::Milliseconds(1));
      }
    }
    taken_ += static_cast<double>(amount);
    return absl::ZeroDuration();
  }

  // Of what was `taken` at `since` so much was not used. What the bucket has filled since is there already, and is not
  // given twice.
  void GiveBack(int64_t amount, int64_t taken, absl::Time since, absl::Time now) {
    Fill(now);
    const double still_taken = static_cast<double>(taken) - Filled(now - since);
    taken_ = std::max(0.0, taken_ - std::min(static_cast<double>(amount), std::max(0.0, still_taken)));
  }

 private:
  static constexpr double kRounding = 1e-6;

  // In such a time, at the rate of now.
  double Filled(absl::Duration time) const {
    return static_cast<double>(per_minute_) * absl::FDivDuration(time, absl::Minutes(1));
  }

  void Fill(absl::Time now) {
    if (last_ != absl::InfinitePast()) taken_ = std::max(0.0, taken_ - Filled(now - last_));
    last_ = now;
    if (per_minute_ == 0) taken_ = 0;
  }

  int64_t per_minute_ = 0;
  double taken_ = 0;  // and not filled again
  absl::Time last_ = absl::InfinitePast();
};

}  // namespace runahead
