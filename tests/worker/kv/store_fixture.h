// A store of eight blocks and a bit, under a clock of the test's.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "gtest/gtest.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/fake_device.h"
#include "worker/kv/store.h"

namespace runahead {

inline constexpr int64_t kLayers = 3;
inline constexpr int64_t kRowBytes = 24;
inline constexpr int64_t kBlocks = 8;

class KvStoreTest : public ::testing::Test {
 protected:
  KvStoreTest() {
    absl::StatusOr<std::unique_ptr<KvStore>> store =
        KvStore::Create({kLayers, kRowBytes, kBlocks * kKvBlockTokens + 17, 99}, device_, clock_);
    RUNAHEAD_CHECK(store.ok());
    store_ = *std::move(store);
  }

  LeaseId Reserve(int64_t prompt, int64_t total) {
    absl::StatusOr<LeaseId> lease = store_->Reserve({.prompt_tokens = prompt, .total_tokens = total});
    EXPECT_TRUE(lease.ok()) << lease.status();
    return lease.value_or(LeaseId{});
  }

  absl::Status Fill(const LeaseId& lease, int64_t layer, int64_t begin, int64_t end) {
    RUNAHEAD_ASSIGN_OR_RETURN(KvStore::Write write, store_->BeginWrite(lease, layer, begin, end));
    return write.Commit().Wait();
  }

  void FillAll(const LeaseId& lease, int64_t prompt) {
    for (int64_t layer = 0; layer < kLayers; ++layer) EXPECT_TRUE(Fill(lease, layer, 0, prompt).ok());
  }

  testing::FakeDevice device_;
  testing::FakeClock clock_;
  std::unique_ptr<KvStore> store_;
};

}  // namespace runahead
