#include "worker/model/sampling.h"

namespace runahead {
namespace {

// The finaliser of splitmix64: every bit of the input moves every bit of the output.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

bool HasPenalties(const SamplingOptions& options) {
  return options.repetition_penalty != 1 || options.presence_penalty != 0 || options.frequency_penalty != 0;
}

double SamplingUniform(uint64_t seed, int64_t position) {
  return static_cast<double>(Mix(seed ^ Mix(static_cast<uint64_t>(position))) >> 11) * 0x1p-53;
}

}  // namespace runahead
