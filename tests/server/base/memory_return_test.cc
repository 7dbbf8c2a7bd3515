#include "server/base/memory_return.h"

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
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

// Was: they stayed, for little had been freed.
TEST(MemoryReturn, GivesBackPagesThatLittleHadKept) {
  if (testing::kSanitized) GTEST_SKIP() << "the memory is not malloc's";
  MemoryReturn memory;
  absl::Time now = absl::UnixEpoch();
  memory.Poll(now);
  const int64_t before = ResidentMiB();
  std::vector<std::string> small, large;
  for (int i = 0; i < 10'000; ++i) {
    small.emplace_back(100, 'x');
    large.emplace_back(3900, 'x');
  }
  memory.Poll(now += absl::Seconds(10));
  large = {};
  memory.Poll(now += absl::Seconds(10));
  EXPECT_GT(ResidentMiB(), before + 30) << "the test does not keep pages";
  small.resize(1);
  memory.Poll(now += absl::Seconds(10));
  EXPECT_LT(ResidentMiB(), before + 10);
}

// What a process has, in bytes. A trim gives back what is free; others may free more before it ends.
struct ProcessHeap {
  int64_t used = 100 << 20, resident = 110 << 20, can_trim = 0;
  std::function<void()> meanwhile = [] {};
  MemoryReturn::Heap heap() {
    return {[this] { return used; }, [this] { return resident; },
            [this] {
              resident -= std::exchange(can_trim, 0);
              meanwhile();
            }};
  }
  void Take(int64_t bytes) {
    used += bytes;
    resident += bytes;
  }
  void Free(int64_t bytes) {
    used -= bytes;
    can_trim += bytes;
  }
};

// Was: 20 MiB of a worker stayed for good where cores were busy.
TEST(MemoryReturn, GivesBackWhatWasFreedWhileItGaveBack) {
  constexpr int64_t kMiB = 1 << 20;
  ProcessHeap process;
  MemoryReturn memory(process.heap());
  absl::Time now = absl::UnixEpoch();
  memory.Poll(now);
  process.Take(25 * kMiB);
  process.Free(5 * kMiB);
  // As much as it gives back, each time.
  process.meanwhile = [&process] { process.Free(5 * kMiB); };
  for (int i = 0; i < 2; ++i) memory.Poll(now += absl::Seconds(10));
  process.meanwhile = [&process] { process.Free(10 * kMiB); };
  memory.Poll(now += absl::Seconds(10));
  process.meanwhile = [] {};
  EXPECT_EQ(process.resident, 120 * kMiB);
  memory.Poll(now += absl::Seconds(10));
  EXPECT_EQ(process.resident, 110 * kMiB);
}

// Was: what a flood left in the first seconds of a worker stayed as long as the flood's connection, for its KV memory
// had been taken and not touched.
TEST(MemoryReturn, GivesBackWhatMemoryThatWasNotTouchedHides) {
  constexpr int64_t kMiB = 1 << 20;
  ProcessHeap process;
  MemoryReturn memory(process.heap());
  process.used += 32 * kMiB;  // taken, not touched
  process.Take(10 * kMiB);
  process.Free(10 * kMiB);
  absl::Time now = absl::UnixEpoch();
  memory.Poll(now);
  EXPECT_EQ(process.resident, 110 * kMiB);
  for (int i = 0; i < 10; ++i) memory.Poll(now += absl::Seconds(10));
  EXPECT_EQ(memory.returned(), 1);
}

// Stacks of new threads, and parts of pages.
TEST(MemoryReturn, TriesAFewTimesAndNotForEverWhereIdleMemoryCannotBeGivenBack) {
  ProcessHeap process;
  MemoryReturn memory(process.heap());
  absl::Time now = absl::UnixEpoch();
  process.resident += 10 << 20;
  for (int i = 0; i < 10; ++i) memory.Poll(now += absl::Seconds(10));
  EXPECT_EQ(memory.returned(), 4);
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
