#include "worker/prefill/job_memory.h"

#include <gtest/gtest.h>

#include "tests/testing/fake_device.h"
#include "tests/testing/pass_model.h"

namespace runahead {
namespace {

// KV rows of 16 bytes and X rows of 20, in f32.
class JobMemoryTest : public ::testing::Test {
 protected:
  static PrefillJob Job(std::vector<int64_t> bounds, int part, int64_t x_tokens) {
    PrefillJob job;
    job.bounds = std::move(bounds);
    job.part = part;
    job.x_tokens = x_tokens;
    return job;
  }
  size_t Bytes(const PrefillJob& job) { return LayerRowsOf(job, model_, device_).bytes(); }

  testing::FakeDevice device_;
  const testing::PassModel model_{/*layers=*/4, /*hidden=*/5, /*head_dim=*/2, /*vocab=*/7, /*context_length=*/1000};
};

TEST_F(JobMemoryTest, AJobThatHandsOffNoXTakesNotAByteForIt) {
  EXPECT_EQ(Bytes(Job({0, 10, 30}, 1, 0)), 30u * 16);
  EXPECT_EQ(Bytes(Job({0, 10, 30}, 1, 10)), 30u * 16) << "its part begins where X ends";
}

TEST_F(JobMemoryTest, XOfTheOwnPartIsKeptBesideTheKvOfAll) {
  EXPECT_EQ(Bytes(Job({0, 10, 30}, 0, 30)), 10u * 16 + 10 * 20);
  EXPECT_EQ(Bytes(Job({0, 10, 30}, 1, 30)), 30u * 16 + 20 * 20);
  EXPECT_EQ(Bytes(Job({0, 10, 30}, 1, 11)), 30u * 16 + 20 * 20) << "a part's products write X of all its rows";
  PrefillJob gathers = Job({0, 10, 30}, 0, 30);
  gathers.schedule = Schedule::kTsp;
  EXPECT_EQ(Bytes(gathers), 30u * 16 + 10 * 20);
}

TEST_F(JobMemoryTest, TheFewestBuffersMustFit) {
  const LayerRows rows = LayerRowsOf(Job({0, 10, 30}, 1, 30), model_, device_);
  EXPECT_TRUE(CheckJobMemory(rows, 3 * 880).ok());
  EXPECT_EQ(CheckJobMemory(rows, 3 * 880 - 1),
            absl::ResourceExhaustedError("a prefix of 30 tokens does not fit the 29 that this worker's prefill_memory "
                                         "holds beside X of 20"));
  EXPECT_EQ(CheckJobMemory({.kv = 30, .kv_row_bytes = 16}, 3 * 480 - 1),
            absl::ResourceExhaustedError(
                "a prefix of 30 tokens does not fit the 29 that this worker's prefill_memory holds"));
}

}  // namespace
}  // namespace runahead
