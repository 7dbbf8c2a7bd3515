#include "worker/decode/store_report.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/fake_device.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

TEST(StoreReport, ShowsBytesLeasesAndExpiries) {
  testing::FakeDevice device;
  testing::FakeClock clock;
  absl::StatusOr<std::unique_ptr<KvStore>> store = KvStore::Create({2, 8, 4 * kKvBlockTokens, 1}, device, clock);
  ASSERT_TRUE(store.ok());
  MetricRegistry registry("cpu");
  DecodeMetrics metrics(registry);
  StoreReport report(**store, metrics);
  EXPECT_THAT(registry.Serialize(), HasSubstr("runahead_kv_capacity_bytes{tier=\"host\"} 16384"));
  ASSERT_TRUE((*store)->Reserve(1, 300).ok());
  ASSERT_TRUE((*store)->Reserve(1, 2).ok());
  report.Update();
  EXPECT_THAT(registry.Serialize(), HasSubstr("runahead_kv_bytes{tier=\"host\"} 12288"));
  EXPECT_THAT(registry.Serialize(), HasSubstr("runahead_kv_leases 2"));
  clock.Advance(absl::Seconds(31));
  (*store)->ReapExpired();
  report.Update();
  report.Update();
  EXPECT_THAT(registry.Serialize(), HasSubstr("runahead_kv_leases 0"));
  EXPECT_THAT(registry.Serialize(), HasSubstr("runahead_kv_leases_expired_total 2"));
}

TEST(StoreReport, NamesTheTier) {
  testing::FakeDevice device;
  testing::FakeClock clock;
  KvStoreOptions options{2, 8, 4 * kKvBlockTokens, 1};
  options.tier = MemoryKind::kDevice;
  const auto store = KvStore::Create(options, device, clock);
  ASSERT_TRUE(store.ok());
  MetricRegistry registry("cpu");
  DecodeMetrics metrics(registry);
  const StoreReport report(**store, metrics);
  EXPECT_THAT(registry.Serialize(), HasSubstr("runahead_kv_capacity_bytes{tier=\"device\"} 16384"));
  EXPECT_THAT(registry.Serialize(), HasSubstr("runahead_kv_capacity_bytes{tier=\"host\"} 0"));
}

}  // namespace
}  // namespace runahead
