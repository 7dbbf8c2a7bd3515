#include "worker/decode/store_report.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/fake_device.h"
#include "tests/testing/metric_values.h"

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
  ASSERT_TRUE((*store)->Reserve({.prompt_tokens = 1, .total_tokens = 300}).ok());
  ASSERT_TRUE((*store)->Reserve({.prompt_tokens = 1, .total_tokens = 2}).ok());
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

TEST(StoreReport, ShowsWhatIsPromisedBesideWhatIsInUse) {
  testing::FakeDevice device;
  testing::FakeClock clock;
  const auto store = KvStore::Create({2, 8, 4 * kKvBlockTokens, 1}, device, clock);
  ASSERT_TRUE(store.ok());
  MetricRegistry registry("cpu");
  DecodeMetrics metrics(registry);
  StoreReport report(**store, metrics);
  ASSERT_TRUE((*store)->Reserve({.prompt_tokens = 1, .total_tokens = 900, .expected_tokens = 600}).ok());
  report.Update();
  EXPECT_THAT(registry.Serialize(), HasSubstr("runahead_kv_bytes{tier=\"host\"} 4096"));
  EXPECT_THAT(registry.Serialize(), HasSubstr("runahead_kv_promised_bytes{tier=\"host\"} 12288"));
}

TEST(StoreReport, CountsWhatLeasesExpectAndWhatComes) {
  testing::FakeDevice device;
  testing::FakeClock clock;
  KvStoreOptions options{2, 8, 8 * kKvBlockTokens, 1};
  options.x_row_bytes = 4;
  const auto store = KvStore::Create(options, device, clock);
  ASSERT_TRUE(store.ok());
  MetricRegistry registry("cpu");
  DecodeMetrics metrics(registry);
  StoreReport report(**store, metrics);
  const auto count = [&](const char* which, const char* kind) {
    report.Update();
    return testing::Value(registry, absl::StrCat("runahead_handoff_", which, "_bytes_total{kind=\"", kind, "\"}"));
  };
  const auto come = [&](const LeaseId& lease, int64_t end, SliceKind kind) {
    absl::StatusOr<KvStore::Write> write = (*store)->BeginWrite(lease, 0, 0, end, kind);
    ASSERT_TRUE(write.ok()) << write.status();
    EXPECT_TRUE(write->Commit().Wait().ok());
  };
  const LeaseId lease = *(*store)->Reserve({.prompt_tokens = 300, .total_tokens = 400, .with_x = true, .kv_from = 100});
  EXPECT_EQ(count("expected", "kv"), 2 * 200 * 8);
  EXPECT_EQ(count("expected", "x"), 2 * 300 * 4);
  come(lease, 300, SliceKind::kX);
  come(lease, 300, SliceKind::kKv);
  come(lease, 300, SliceKind::kKv);
  EXPECT_EQ(count("received", "kv"), 200 * 8) << "what comes twice counts once, and what nobody waits for not at all";
  EXPECT_EQ(count("received", "x"), 300 * 4);
  // A lease that shares the first block of another does not expect it.
  const LeaseId whole = *(*store)->Reserve({.prompt_tokens = 300, .total_tokens = 400});
  for (int64_t layer = 0; layer < 2; ++layer) {
    EXPECT_TRUE((*store)->BeginWrite(whole, layer, 0, 300)->Commit().Wait().ok());
  }
  const double before = count("expected", "kv");
  ASSERT_TRUE((*store)->Reserve({.prompt_tokens = 300, .total_tokens = 400, .share = {whole, 300}}).ok());
  EXPECT_EQ(count("expected", "kv") - before, 2 * (300 - kKvBlockTokens) * 8);
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
