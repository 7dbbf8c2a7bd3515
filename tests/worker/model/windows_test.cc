#include "worker/model/windows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/config_gguf.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<std::vector<int64_t>> Read(GgufBuilder builder,
                                          const std::map<std::string, std::optional<uint32_t>>& numbers,
                                          int64_t pattern = 0) {
  const auto file = ConfigFile(std::move(builder), "llama", numbers, 8);
  ModelConfig config;
  config.layers = 4;
  config.context_length = 100;
  return ReadWindows(ConfigKeys(*file, "llama"), config, pattern);
}

constexpr const char* kWindow = "llama.attention.sliding_window";
constexpr const char* kPattern = "llama.attention.sliding_window_pattern";

TEST(Windows, AreNoneWhereTheFileSaysNothingOrNothingIsHidden) {
  EXPECT_THAT(*Read(GgufBuilder(), {}), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(*Read(GgufBuilder(), {{kWindow, 0}}), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(*Read(GgufBuilder(), {{kWindow, 100}}), ElementsAre(0, 0, 0, 0));
}

TEST(Windows, AreOfAllLayersOrOfSomeByAnyOfTheKeys) {
  EXPECT_THAT(*Read(GgufBuilder(), {{kWindow, 99}}), ElementsAre(99, 99, 99, 99));
  EXPECT_THAT(*Read(GgufBuilder(), {{kWindow, 8}}, 2), ElementsAre(8, 0, 8, 0));
  EXPECT_THAT(*Read(GgufBuilder(), {{kWindow, 8}, {kPattern, 3}}, 2), ElementsAre(8, 8, 0, 8));
  EXPECT_THAT(*Read(GgufBuilder(), {{kWindow, 8}, {"llama.attention.sliding_window_from_layer", 3}}),
              ElementsAre(0, 0, 0, 8));
  for (const char* key : {kPattern, "llama.attention.sliding_window_layers"}) {
    GgufBuilder builder;
    builder.AddBools(key, {false, true, true, false});
    EXPECT_THAT(*Read(std::move(builder), {{kWindow, 8}}), ElementsAre(0, 8, 8, 0)) << key;
  }
}

TEST(Windows, RefuseAListOfOtherLength) {
  GgufBuilder builder;
  builder.AddBools("llama.attention.sliding_window_layers", {true});
  EXPECT_THAT(std::string(Read(std::move(builder), {{kWindow, 8}}).status().message()),
              HasSubstr("sliding_window_layers: it has 1 entries for 4 layers"));
}

}  // namespace
}  // namespace runahead
