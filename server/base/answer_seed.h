// The seeds of several answers to one prompt.
#pragma once

#include <cstdint>

namespace runahead {

// Of answer `answer`, from 0, to a prompt whose request has `seed`: answer 0 is drawn as the only one is. The others
// have splitmix64's output after so many steps from `seed`. Clients may compute it: docs/clients.md says how.
inline uint64_t SeedOfAnswer(uint64_t seed, int32_t answer) {
  if (answer == 0) return seed;
  uint64_t x = seed + static_cast<uint64_t>(answer) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace runahead
