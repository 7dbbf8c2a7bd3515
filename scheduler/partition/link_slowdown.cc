#include "scheduler/partition/link_slowdown.h"

namespace runahead {
namespace {

// splitmix64's finaliser: a draw in [0, 1) that depends on all bits of the key.
double Draw(uint64_t key) {
  key += 0x9e3779b97f4a7c15;
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9;
  key = (key ^ (key >> 27)) * 0x94d049bb133111eb;
  return static_cast<double>((key ^ (key >> 31)) >> 11) * 0x1p-53;
}

}  // namespace

double SlowdownOf(const LinkSlowdown& slowdown, uint64_t direction, int64_t layer, int part) {
  const uint64_t frame = (direction << 48) ^ (static_cast<uint64_t>(part) << 32) ^ static_cast<uint64_t>(layer);
  const uint64_t key = slowdown.seed * 0xd1342543de82ef95 + frame * 2;
  if (Draw(key) >= slowdown.probability) return 1;
  return 1 + Draw(key + 1) * (slowdown.max_factor - 1);
}

}  // namespace runahead
