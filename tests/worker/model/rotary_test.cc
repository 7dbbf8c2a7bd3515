#include "worker/model/rotary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numbers>
#include <string>

#include "tests/testing/config_gguf.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kContext = 4096;
constexpr float kBase = 10000;
constexpr int64_t kDims = 64;

class RotaryTest : public ::testing::Test {
 protected:
  absl::StatusOr<Rotary> Read(const std::string& type, const std::map<std::string, float>& floats,
                              const std::map<std::string, std::optional<uint32_t>>& numbers = {}) {
    GgufBuilder builder;
    if (!type.empty()) builder.AddString("llama.rope.scaling.type", type);
    for (const auto& [name, value] : floats)
      builder.AddFloat("llama.rope." + (name[0] == '/' ? name.substr(1) : "scaling." + name), value);
    file_ = ConfigFile(std::move(builder), "llama", numbers, 8);
    return ReadRotary(ConfigKeys(*file_, "llama"), kBase, kDims, kContext);
  }
  static double Plain(int64_t d) { return std::pow(kBase, -2.0 * static_cast<double>(d) / kDims); }

  std::shared_ptr<const ModelFile> file_;
};

TEST_F(RotaryTest, IsPlainWhereNothingIsStretched) {
  for (const char* type : {"none", "dynamic"}) {
    const auto rotary = Read(type, {{"factor", 4.0f}});
    ASSERT_TRUE(rotary.ok()) << rotary.status();
    EXPECT_EQ(rotary->magnitude, 1.0f);
    for (int64_t d = 0; d < kDims / 2; ++d) EXPECT_NEAR(rotary->frequencies[d] / Plain(d), 1, 1e-5) << type << d;
  }
}

// llama.cpp takes a factor without a type, and the name that the factor had in old files, as linear.
TEST_F(RotaryTest, AFactorWithoutATypeIsLinear) {
  using Floats = std::map<std::string, float>;
  for (const auto& [type, floats] :
       std::vector<std::pair<std::string, Floats>>{{"", {{"factor", 4.0f}}},
                                                   {"", {{"/scale_linear", 4.0f}}},
                                                   {"linear", {{"/scale_linear", 4.0f}}},
                                                   {"", {{"factor", 4.0f}, {"/scale_linear", 8.0f}}}}) {
    const auto rotary = Read(type, floats);
    ASSERT_TRUE(rotary.ok()) << rotary.status();
    for (int64_t d = 0; d < kDims / 2; ++d) EXPECT_NEAR(rotary->frequencies[d] / Plain(d), 0.25, 1e-5) << d;
  }
  for (const Floats& floats : {Floats{{"factor", 0.0f}}, {{"factor", 1.0f}}, {{"/scale_linear", 1.0f}}}) {
    EXPECT_EQ(*Read("", floats), *Read("none", {}));
  }
}

TEST_F(RotaryTest, TheAttentionFactorIsPartOfTheMagnitude) {
  for (const char* type : {"", "none", "linear"}) {
    EXPECT_EQ(Read(type, {{"factor", 4.0f}, {"attn_factor", 2.0f}})->magnitude, 2.0f) << type;
  }
  EXPECT_NEAR(Read("yarn", {{"factor", 4.0f}, {"attn_factor", 2.0f}})->magnitude, 2 * (0.1 * std::log(4.0) + 1), 1e-6);
}

// By the lengths of waves, as the authors of Llama 3 have it.
TEST_F(RotaryTest, Llama3StretchesLongWavesOnly) {
  const auto rotary = Read("llama3", {{"factor", 8.0f}, {"low_freq_factor", 1.0f}, {"high_freq_factor", 4.0f}},
                           {{"llama.rope.scaling.original_context_length", 1024}});
  ASSERT_TRUE(rotary.ok()) << rotary.status();
  int kept = 0, divided = 0, between = 0;
  for (int64_t d = 0; d < kDims / 2; ++d) {
    const double plain = Plain(d), wave = 2 * std::numbers::pi / plain;
    const double ratio = rotary->frequencies[d] / plain;
    if (wave < 1024.0 / 4) {
      EXPECT_NEAR(ratio, 1, 1e-5);
      ++kept;
    } else if (wave > 1024.0) {
      EXPECT_NEAR(ratio, 1 / 8.0, 1e-5);
      ++divided;
    } else {
      const double smooth = (1024 / wave - 1) / (4 - 1);
      EXPECT_NEAR(ratio, (1 - smooth) / 8 + smooth, 1e-4);
      ++between;
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(between, 0);
  EXPECT_GT(divided, 0);
}

// Numbers from transformers' own function for these settings.
TEST_F(RotaryTest, YarnIsWhatTransformersMakesOfIt) {
  const auto rotary = Read("yarn", {{"factor", 4.0f}}, {{"llama.rope.scaling.original_context_length", 1024}});
  ASSERT_TRUE(rotary.ok()) << rotary.status();
  EXPECT_NEAR(rotary->magnitude, 0.1 * std::log(4.0) + 1, 1e-6);
  const std::map<int64_t, double> expected = {{0, 1},
                                              {5, 0.2371374},
                                              {9, 0.05768417},
                                              {12, 0.01885204},
                                              {15, 0.005641822},
                                              {18, 0.001405853},
                                              {21, 0.0005928435},
                                              {25, 0.0001874735},
                                              {31, 3.333804e-05}};
  for (const auto& [d, frequency] : expected) EXPECT_NEAR(rotary->frequencies[d] / frequency, 1, 2e-5) << d;
  const auto stated = Read("yarn", {{"factor", 4.0f}, {"yarn_attention_factor", 1.5f}});
  EXPECT_EQ(stated->magnitude, 1.5f);
}

TEST_F(RotaryTest, TheMagnitudeIsThatOfCosinesAndSines) {
  const std::vector<float> table = RotationTable({.frequencies = {0.5f, 0.25f}, .magnitude = 2}, 3);
  ASSERT_EQ(table.size(), 12u);
  EXPECT_NEAR(table[2 * 4 + 0], 2 * std::cos(1.0), 1e-6);
  EXPECT_NEAR(table[2 * 4 + 1], 2 * std::cos(0.5), 1e-6);
  EXPECT_NEAR(table[2 * 4 + 2], 2 * std::sin(1.0), 1e-6);
  EXPECT_NEAR(table[2 * 4 + 3], 2 * std::sin(0.5), 1e-6);
}

TEST_F(RotaryTest, RefusesWhatCannotBeNamingTheKey) {
  const auto refused = [&](const absl::StatusOr<Rotary>& rotary, const std::string& named) {
    EXPECT_THAT(std::string(rotary.status().message()), HasSubstr(named));
  };
  refused(Read("linear", {}), "rope.scaling.factor");
  refused(Read("linear", {{"factor", 0.5f}}), "rope.scaling.factor");
  refused(Read("", {{"/scale_linear", 0.5f}}), "rope.scale_linear");
  refused(Read("", {{"attn_factor", 0.0f}}), "rope.scaling.attn_factor");
  refused(Read("llama3", {{"factor", 8.0f}, {"low_freq_factor", 4.0f}, {"high_freq_factor", 1.0f}},
               {{"llama.rope.scaling.original_context_length", 1024}}),
          "rope.scaling.high_freq_factor");
  refused(Read("yarn", {{"factor", 4.0f}, {"yarn_beta_fast", 1.0f}, {"yarn_beta_slow", 2.0f}}),
          "rope.scaling.yarn_beta_fast");
  for (const char* key : {"yarn_attn_factor", "yarn_ext_factor", "yarn_log_multiplier"}) {
    refused(Read("yarn", {{"factor", 4.0f}, {key, 1.0f}}), absl::StrCat("rope.scaling.", key));
  }
  refused(Read("longrope", {}), "'longrope' is not supported");
}

}  // namespace
}  // namespace runahead
