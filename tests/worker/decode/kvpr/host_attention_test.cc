#include "worker/decode/kvpr/host_attention.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kernels/base/monotonic.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/testing/device_tensor.h"

namespace runahead {
namespace {

// Two sequences, of which the lane has 768 and 256 positions.
KvLayout PartsOfTwo() {
  KvLayout layout{.page_tokens = 256, .pages = {0, 1, 2, 3}, .sequences = {}};
  layout.sequences.push_back({.queries = 1, .length = 1000, .first_page = 0, .begin = 0, .end = 768});
  layout.sequences.push_back({.queries = 1, .length = 900, .first_page = 3, .begin = 256, .end = 512});
  return layout;
}

TEST(HostAttentionTest, ReadsNoFasterThanItsRateAndGivesTheSame) {
  const std::shared_ptr<Device> host = *NewCpuDevice({.threads = 1});
  DeviceMemory memory(host);
  const AttentionShape shape{.heads = 2, .kv_heads = 2, .head_dim = 16, .scale = 0.25f};
  std::vector<float> values(1024 * 64);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 97) / 97;
  const Tensor kv = memory.NewTensor(values, 1024), q = memory.NewTensor(std::vector<float>(64, 0.5f), 2);
  const auto table = *host->MakeKvTable(memory.stream(), PartsOfTwo());
  const auto attend = [&](double gbps, int times) {
    const Tensor partials = memory.Empty(table->pieces(), 2 * 17);
    const HostAttention attention{*host, memory.stream(), gbps};
    const absl::Time begin = MonotonicNow();
    for (int i = 0; i < times; ++i) EXPECT_TRUE(attention.Enqueue(q, shape, *table, kv.ref, partials).ok());
    memory.Finish();
    const absl::Duration took = MonotonicNow() - begin;
    return std::make_pair(memory.Read(partials), took);
  };
  const double bytes = 1024 * 64 * 4, seconds = 0.02;
  const auto paced = attend(bytes * 8 / seconds / 1e9, 2);
  EXPECT_GE(paced.second, absl::Seconds(2 * seconds));
  EXPECT_EQ(paced.first, attend(0, 1).first);
}

}  // namespace
}  // namespace runahead
