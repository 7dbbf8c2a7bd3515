// What others' traffic does to a link, at random.
#pragma once

#include <cstdint>
#include <random>

namespace runahead {

// As LinkSlowdown of the simulator (scheduler/partition/cost_model.h): a frame takes, with this probability, a factor
// longer that is drawn evenly from [1, max_factor].
struct LinkNoise {
  double probability = 0;
  double max_factor = 1;
  uint64_t seed = 0;
};

// The factors of one link's frames, one after the other. `link`: links have other draws, though the seed be the same.
class FrameNoise {
 public:
  FrameNoise(const LinkNoise& noise, uint64_t link);
  double Next();

 private:
  double Draw();

  LinkNoise noise_;
  std::mt19937_64 random_;
};

}  // namespace runahead
