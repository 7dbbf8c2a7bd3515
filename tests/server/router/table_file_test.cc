#include "server/router/table_file.h"

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Write(const std::string& text) {
  const std::string path = ::testing::TempDir() + "/table_file_test.yaml";
  std::ofstream(path) << text;
  return path;
}

const ModelInfo kTiny{"tiny", "0123456789abcdef", 1000, 320, "Tiny-v2.Q4_1"};
constexpr char kHead[] = "version: 1\nmodel: tiny\nschedule: kvr\nentries:\n";

TEST(ReadPartitionTable, ReadsWhatASearchFound) {
  const std::string path = Write(std::string(kHead) +
                                 "  - {width: 4, tokens: 8192, fractions: [0.340, 0.250, 0.215, 0.195]}\n"
                                 "  - {width: 4, tokens: 12288, fractions: [0.360, 0.260, 0.205, 0.175]}\n");
  const absl::StatusOr<PartitionTable> table = ReadPartitionTable(path, kTiny);
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(table->Lookup(10240, 4)->parts, ElementsAre(3584, 2611, 2151, 1894));
}

TEST(ReadPartitionTable, NamesFileAndPlace) {
  const auto refusal = [](const std::string& text) {
    const absl::Status status = ReadPartitionTable(Write(text), kTiny).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal("version: 2\nschedule: kvr\nentries: []\n"), HasSubstr("table_file_test.yaml:1: version"));
  EXPECT_THAT(refusal(std::string(kHead) + "  - {width: 2, tokens: 8, fractions: [0.5, half]}\n"),
              HasSubstr("entries[0]: fractions: \"half\" is not a number"));
  EXPECT_THAT(refusal(std::string(kHead) + "  - {width: 2, tokens: 8, fractions: [0.5, 0.6]}\n"),
              HasSubstr("entries[0]: fractions: they add up to 1.1"));
  EXPECT_THAT(refusal(std::string(kHead) + "  - {width: 2, tokens: 8, fraction: [0.5, 0.5]}\n"),
              HasSubstr("fractions"));
  EXPECT_EQ(ReadPartitionTable("/nowhere/table.yaml", kTiny).status().code(), absl::StatusCode::kNotFound);
}

TEST(ReadPartitionTable, RefusesATableOfAnotherModel) {
  const auto read = [](const std::string& model_line) {
    const std::string path =
        Write("version: 1\n" + model_line + "schedule: kvr\nentries: [{width: 1, tokens: 8, fractions: [1]}]\n");
    return ReadPartitionTable(path, kTiny).status();
  };
  const absl::Status refused = read("model: small\n");
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("table_file_test.yaml: model: the table was made for \"small\", "
                        "but this router serves \"tiny\" (or \"Tiny-v2.Q4_1\")"));
  EXPECT_TRUE(read("model: Tiny\n").ok());
  EXPECT_TRUE(read("model: tiny-v2.q4_1\n").ok());
  EXPECT_TRUE(read("").ok());
}

}  // namespace
}  // namespace runahead
