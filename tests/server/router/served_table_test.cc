#include "server/router/served_table.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const ModelInfo kTiny{"tiny", "0123456789abcdef", 1000, 320, "Tiny-v2.Q4_1"};
constexpr char kHead[] = "version: 1\nmodel: tiny\nschedule: kvr\nentries:\n";

TEST(ParseServedTable, ReadsWhatASearchFound) {
  const absl::StatusOr<ServedTable> table =
      ParseServedTable(std::string(kHead) +
                           "  - {width: 4, tokens: 8192, fractions: [0.340, 0.250, 0.215, 0.195]}\n"
                           "  - {width: 4, tokens: 12288, fractions: [0.360, 0.260, 0.205, 0.175]}\n",
                       "t.yaml", kTiny);
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(table->table.Lookup(10240, 4)->parts, ElementsAre(3584, 2611, 2151, 1894));
}

TEST(ParseServedTable, RoundsToTheBlockOfTheFile) {
  const absl::StatusOr<ServedTable> table = ParseServedTable(
      "block: 64\n" + std::string(kHead) + "  - {width: 2, tokens: 8192, fractions: [0.6, 0.4]}\n", "t.yaml", kTiny);
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(table->table.Lookup(10001, 2)->parts, ElementsAre(94 * 64, 3985));
}

TEST(ParseServedTable, SaysWhatItWasMeasuredIn) {
  const std::string entry = "  - {width: 1, tokens: 8, fractions: [1]}\n";
  EXPECT_EQ(ParseServedTable(kHead + entry, "t.yaml", kTiny)->dtype, "");
  EXPECT_EQ(ParseServedTable("dtype: bf16\n" + (kHead + entry), "t.yaml", kTiny)->dtype, "bf16");
}

TEST(ParseServedTable, RefusesWhatIsNoPartitionFile) {
  const absl::Status status =
      ParseServedTable(std::string(kHead) + "  - {width: 2, tokens: 8, fractions: [0.5, 0.6]}\n", "t.yaml", kTiny)
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("t.yaml:5: entries[0]: fractions: they add up to 1.1"));
}

TEST(ParseServedTable, RefusesATableOfAnotherModel) {
  const auto read = [](const std::string& model_line) {
    return ParseServedTable(
               "version: 1\n" + model_line + "schedule: kvr\nentries: [{width: 1, tokens: 8, fractions: [1]}]\n",
               "t.yaml", kTiny)
        .status();
  };
  const absl::Status refused = read("model: small\n");
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("t.yaml: model: the table was made for \"small\", "
                                                        "but this router serves \"tiny\" (or \"Tiny-v2.Q4_1\")"));
  EXPECT_TRUE(read("model: Tiny\n").ok());
  EXPECT_TRUE(read("model: tiny-v2.q4_1\n").ok());
  EXPECT_TRUE(read("").ok());
}

}  // namespace
}  // namespace runahead
