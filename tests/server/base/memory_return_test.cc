#include "server/base/memory_return.h"

#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/sanitized.h"

namespace runahead {
namespace {

int64_t ResidentMiB() {
  std::ifstream statm("/proc/self/statm");
  int64_t total_pages = 0, resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE) >> 20;
}

// Takes 200 MiB in small pieces, and frees all but the last, below which glibc keeps the rest.
std::string UseMuch() {
  std::vector<std::string> pieces(200 << 10, std::string(1000, 'x'));
  return std::move(pieces.back());
}

TEST(MemoryReturn, GivesBackWhatWasFreedEachTime) {
  if (testing::kSanitized) GTEST_SKIP() << "the memory is not malloc's";
  MemoryReturn memory;
  absl::Time now = absl::UnixEpoch();
  memory.Poll(now);
  const int64_t before = ResidentMiB();
  std::vector<std::string> kept;
  for (int round = 0; round < 3; ++round) {
    kept.push_back(UseMuch());
    EXPECT_GT(ResidentMiB(), before + 150);
    now += absl::Seconds(10);
    memory.Poll(now);
    EXPECT_LT(ResidentMiB(), before + 30);
  }
}

TEST(MemoryReturn, DoesNothingWhereLittleWasFreed) {
  MemoryReturn memory;
  absl::Time now = absl::UnixEpoch();
  memory.Poll(now);
  const int64_t returned = memory.returned();
  for (int i = 0; i < 10; ++i) memory.Poll(now += absl::Seconds(10));
  EXPECT_EQ(memory.returned(), returned);
}

}  // namespace
}  // namespace runahead
