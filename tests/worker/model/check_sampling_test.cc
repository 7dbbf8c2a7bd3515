#include "worker/model/check_sampling.h"

#include <cmath>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kVocab = 100;

std::string SamplingError(const std::vector<LogitBias>& biases) {
  SamplingOptions options;
  options.logit_bias = biases;
  return std::string(CheckSampling(options, kVocab).message());
}
std::string RulesError(const DrawRules& rules) {
  return std::string(CheckDrawRules(rules, kVocab).message());
}

TEST(CheckSampling, BiasesAreOfIdsThatThereAreAndOfSomeSize) {
  EXPECT_EQ(SamplingError({{0, 100}, {99, -100}}), "");
  EXPECT_THAT(SamplingError({{100, 1}}), HasSubstr("sampling.logit_bias: is 100"));
  EXPECT_THAT(SamplingError({{-1, 1}}), HasSubstr("sampling.logit_bias: is -1"));
  EXPECT_THAT(SamplingError({{7, 100.5f}}), HasSubstr("sampling.logit_bias[7]: is 100.5"));
  EXPECT_THAT(SamplingError({{7, std::nanf("")}}), HasSubstr("sampling.logit_bias[7]: is nan"));
  EXPECT_THAT(SamplingError(std::vector<LogitBias>(1025, {1, 1})), HasSubstr("sampling.logit_bias: has 1025"));
}

TEST(CheckDrawRules, AreOfIdsThatThereAreAndOfSomeSize) {
  EXPECT_EQ(RulesError({}), "");
  EXPECT_EQ(RulesError({.min_tokens = 9, .end_ids = {0, 99}, .bad_ids = {{1}, {2, 3}}}), "");
  EXPECT_THAT(RulesError({.min_tokens = -1}), HasSubstr("rules.min_tokens: is -1"));
  EXPECT_THAT(RulesError({.end_ids = {1, 100}}), HasSubstr("rules.end_ids: is 100"));
  EXPECT_THAT(RulesError({.bad_ids = {{1}, {}}}), HasSubstr("rules.bad_ids[1]: has 0 ids"));
  EXPECT_THAT(RulesError({.bad_ids = {{1, -5}}}), HasSubstr("rules.bad_ids[0]: is -5"));
  EXPECT_THAT(RulesError({.bad_ids = std::vector<std::vector<int32_t>>(129, {1})}), HasSubstr("has 129 entries"));
  EXPECT_THAT(RulesError({.bad_ids = {std::vector<int32_t>(4097, 1)}}), HasSubstr("has 4097 ids"));
}

}  // namespace
}  // namespace runahead
