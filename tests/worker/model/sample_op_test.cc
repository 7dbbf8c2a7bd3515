// A device's Sample draws what SampleToken draws: the decode engine may take either.
#include <gtest/gtest.h>

#include <random>

#include "kernels/cpu/cpu_device.h"
#include "tests/testing/device_tensor.h"
#include "tests/testing/reference_sample.h"
#include "worker/model/sampler.h"

namespace runahead {
namespace {

TEST(SampleOp, DrawsWhatSampleTokenDraws) {
  DeviceMemory memory(*NewCpuDevice({.threads = 2}));
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 3);
  std::uniform_real_distribution<float> uniform(0, 1);
  const int64_t vocab = 2003;
  int different = 0, close = 0;
  for (int64_t position = 0; position < 400; ++position) {
    std::vector<float> logits(vocab);
    for (float& logit : logits) logit = position % 5 == 0 ? std::round(normal(random)) : normal(random);
    SamplingOptions options{.seed = 42};
    options.temperature = position % 10 == 0 ? 0.0f : 0.3f + 1.5f * uniform(random);
    if (position & 1) options.top_k = static_cast<int32_t>(1 + random() % 100);
    if (position & 2) options.top_p = 0.1f + 0.89f * uniform(random);
    if (position & 4) options.min_p = 0.2f * uniform(random);
    const SampleParams params{options.temperature, options.top_k, options.top_p, options.min_p,
                              SamplingUniform(options.seed, position)};
    const Tensor ids = memory.Empty(1, 1);
    ASSERT_TRUE(memory.device().Sample(memory.stream(), memory.NewTensor(logits, 1), {params}, ids).ok());
    int32_t id;
    std::memcpy(&id, memory.ReadBytes(ids.ref).data(), sizeof(id));
    const auto sampled = SampleToken(logits, options, {}, position);
    ASSERT_TRUE(sampled.ok());
    const ReferenceDraw reference = ReferenceSample(logits, params);
    different += id != sampled->id;
    close += reference.close;
    if (!reference.close) {
      EXPECT_EQ(id, sampled->id) << "position " << position;
      EXPECT_EQ(id, reference.id) << "position " << position;
    }
  }
  EXPECT_LE(different, 4);  // even where sums are within rounding of a border they seldom differ
  EXPECT_LT(close, 200);
}

}  // namespace
}  // namespace runahead
