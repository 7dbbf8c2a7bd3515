#include "worker/link/link_noise.h"

namespace runahead {

FrameNoise::FrameNoise(const LinkNoise& noise, uint64_t link) : noise_(noise) {
  std::seed_seq seeds{static_cast<uint32_t>(noise.seed), static_cast<uint32_t>(noise.seed >> 32),
                      static_cast<uint32_t>(link)};
  random_.seed(seeds);
}

double FrameNoise::Next() {
  const double hit = Draw();
  const double factor = 1 + Draw() * (noise_.max_factor - 1);  // drawn for all: what is hit does not move later draws
  return hit < noise_.probability ? factor : 1;
}

// [0, 1), the same with every standard library.
double FrameNoise::Draw() {
  return static_cast<double>(random_() >> 11) * 0x1p-53;
}

}  // namespace runahead
