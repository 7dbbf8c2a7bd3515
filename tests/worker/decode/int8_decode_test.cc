// Decode with products in 8 bits, the default for quantised models on CPUs, and KV in f16, its default, or in f32.
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/worker/decode/decode_world.h"
#include "tests/worker/decode/int8_model.h"
#include "tests/worker/decode/prompt_rows.h"
#include "tests/worker/decode/rows_world.h"
#include "worker/decode/decode_loop.h"

namespace runahead {
namespace {

struct Int8Case {
  const char* name;
  WeightType type, finer;  // finer: of V and the down projection, so that Q, K and V are one matrix of two types
  DType kv_dtype;
};
void PrintTo(const Int8Case& of, std::ostream* out) {
  *out << of.name;
}

class Int8Decode : public ::testing::TestWithParam<Int8Case> {
 protected:
  std::unique_ptr<DecodeWorld> NewWorld(int threads) const {
    return std::make_unique<DecodeWorld>(LoadInt8(path_, threads, GetParam().kv_dtype), 32);
  }
  static std::string Write(const Int8Case& of) {
    SyntheticModel model = BlocksModel();
    model.SetWeightType(of.type);
    model.finer_type = of.finer;
    return WriteSynthetic(model, "int8_decode");
  }
  const std::string path_ = Write(GetParam());
};

TEST_P(Int8Decode, ASequenceIsBitwiseTheSameAloneInABatchAndOnAnyThreads) {
  constexpr int kMost = 32;
  std::vector<DecodePrompt> prompts;
  std::vector<SamplingOptions> sampling(kMost);
  std::vector<std::vector<Sampled>> alone;
  {
    const std::unique_ptr<DecodeWorld> world = NewWorld(1);
    for (int i = 0; i < kMost; ++i) {
      prompts.push_back(world->Prefill(1 + 9 * i, i));
      sampling[i].logprobs = 20;
      if (i % 4 == 3) sampling[i].temperature = 0.8f, sampling[i].seed = i;
      alone.push_back(world->Start(prompts[i], sampling[i])->Await());
    }
    EXPECT_EQ(world->largest_step(), 1);
  }
  for (const int threads : {1, 2, 3}) {
    for (const int count : {1, 8, kMost}) {
      const std::unique_ptr<DecodeWorld> world = NewWorld(threads);
      const auto sinks =
          world->StartTogether({prompts.end() - count, prompts.end()}, {sampling.end() - count, sampling.end()});
      for (int i = 0; i < count; ++i) {
        SCOPED_TRACE(::testing::Message() << i << " of " << count << " on " << threads << " threads");
        ExpectSameTokens(sinks[i]->Await(), alone[kMost - count + i]);
      }
      EXPECT_GE(world->largest_step(), count - 1);  // the first may be in its first step alone
    }
  }
}

TEST_P(Int8Decode, SeveralRowsOfASequenceGiveBitwiseWhatOneAStepGives) {
  const LoadedModel loaded = LoadInt8(path_, 2, GetParam().kv_dtype);
  const auto make_loop = [](const LoadedModel& of, const KvStore& store, Stream& stream) {
    return std::make_unique<DecodeLoop>(*of.model, *of.device, store, stream);
  };
  const std::vector<int64_t> prompts = {1, 250, 300, 16'380};
  RowsWorld together(loaded, prompts, 20, make_loop), alone(loaded, prompts, 20, make_loop);
  for (const std::vector<NextRows>& step :
       std::vector<std::vector<NextRows>>{{{0, 16}, {1, 16}, {2, 1}, {3, 7}}, {{2, 3}, {0, 1}, {3, 2}}}) {
    std::vector<std::vector<float>> want;
    for (const NextRows& next : step) {
      for (int64_t i = 0; i < next.count; ++i) want.push_back(alone.Step({{next.sequence}}).front());
    }
    EXPECT_EQ(together.Step(step), want);
  }
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(together.Stored(i, 1), alone.Stored(i, 1)) << i;
}

// Products in 8 bits are the same for prompts and output; attention is not.
TEST_P(Int8Decode, RowsOfPromptsAreThoseOfPrefill) {
  for (const int threads : {1, 2}) {
    const LoadedModel loaded = LoadInt8(path_, threads, GetParam().kv_dtype);
    ExpectRowsOfPrefill(loaded, {0, 1, 17, 300}, 0.02, GetParam().name);
    ExpectRowsOfPrefill(loaded, {299, 300}, 0.02, GetParam().name);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, Int8Decode,
    ::testing::Values(Int8Case{"Q4_1AndQ8_0WithKvInF16", WeightType::kQ4_1, WeightType::kQ8_0, DType::kF16},
                      Int8Case{"Q4_0AndQ5_1WithKvInF32", WeightType::kQ4_0, WeightType::kQ5_1, DType::kF32},
                      Int8Case{"Q4_KAndQ6_KWithKvInF16", WeightType::kQ4_K, WeightType::kQ6_K, DType::kF16},
                      Int8Case{"Q3_KAndQ5_KWithKvInF32", WeightType::kQ3_K, WeightType::kQ5_K, DType::kF32}),
    [](const auto& info) { return std::string(info.param.name); });

// |a - b| / |b|.
double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double apart = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) apart += std::pow(a[i] - b[i], 2), size += std::pow(b[i], 2);
  return std::sqrt(apart / size);
}

class Int8Model : public ::testing::TestWithParam<WeightType> {};

// Weights are the same; what is rounded is activations, to 1/254 of the largest of 32: of about normal ones that is
// 0.6 % of a product's size, and two layers have eight products one behind the other, which may add up.
TEST_P(Int8Model, LogitsAreThoseOfF32ButForTheRoundingOfActivations) {
  SyntheticModel model = BlocksModel();
  model.SetWeightType(GetParam());
  const std::string path = WriteSynthetic(model, "int8_model");
  const LoadedModel f32 = LoadForTest(path, DType::kF32, 2);
  const std::vector<int32_t> prompt = RandomIds(40, model.vocab, 1), next = RandomIds(8, model.vocab, 2);
  for (const DType kv_dtype : {DType::kF16, DType::kF32}) {
    const LoadedModel int8 = LoadInt8(path, 2, kv_dtype);
    SequenceRunner of_f32(f32, 48), of_int8(int8, 48);
    const auto compare = [&](const std::vector<int32_t>& ids, bool decode) {
      const auto wanted = of_f32.Append(ids, decode, /*all_logits=*/true);
      const auto found = of_int8.Append(ids, decode, /*all_logits=*/true);
      for (size_t row = 0; row < wanted.size(); ++row) {
        const double distance = Distance(found[row], wanted[row]);
        EXPECT_LE(distance, 0.05) << row;
        EXPECT_GT(distance, 1e-4) << row << ": nothing was rounded";
      }
    };
    compare(prompt, false);
    for (const int32_t id : next) compare({id}, true);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Int8Model,
                         ::testing::Values(WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ5_0, WeightType::kQ5_1,
                                           WeightType::kQ8_0, WeightType::kIQ4_NL, WeightType::kQ2_K, WeightType::kQ3_K,
                                           WeightType::kQ4_K, WeightType::kQ5_K, WeightType::kQ6_K,
                                           WeightType::kIQ4_XS),
                         [](const auto& info) { return std::string(BlockOf(info.param).name); });

}  // namespace
}  // namespace runahead
