#include "client/bench/arrivals.h"

#include <cmath>

namespace runahead {
namespace {

constexpr uint64_t kArrivalStream = ~uint64_t{0};  // of the seed's numbers; prompts count from 0

}  // namespace

PoissonArrivals::PoissonArrivals(double rate, uint64_t seed) : rate_(rate), random_(seed, kArrivalStream) {}

absl::Duration PoissonArrivals::Next() {
  if (begun_) next_s_ += -std::log1p(-random_.Unit()) / rate_;
  begun_ = true;
  return absl::Seconds(next_s_);
}

}  // namespace runahead
