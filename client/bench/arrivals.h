// When requests come: a Poisson process.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "client/bench/seeded_random.h"

namespace runahead {

// Used by one thread.
class PoissonArrivals {
 public:
  // `rate`: requests a second, above 0; infinite: all come at once. The same seed gives the same times.
  PoissonArrivals(double rate, uint64_t seed);

  // Of the next request, since the beginning; the first one comes at 0. Never goes back.
  absl::Duration Next();

 private:
  const double rate_;
  SeededRandom random_;
  bool begun_ = false;
  double next_s_ = 0;
};

}  // namespace runahead
