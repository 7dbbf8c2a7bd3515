#include "server/base/partition_file.h"

#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/text_file.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kWhole[] = R"(# comments are fine
version: 1
model: SmolLM2-135M-Instruct.Q4_1
dtype: bf16
devices: [gpu-a, gpu-a, "gpu: b"]
link: 10 Gbit/s
schedule: kvr
date: 2026-01-31
block: 64
entries:
  - {width: 2, tokens: 1024, fractions: [0.55, 0.45], predicted_ttft_s: 0.21, measured_ttft_s: 0.2, spread_s: 0.01}
  - width: 3
    tokens: 1024
    fractions: [0.4, 0.35, 0.25]
)";

TEST(PartitionFile, IsReadWhole) {
  const absl::StatusOr<PartitionFile> file = ParsePartitionFile(kWhole, "t.yaml");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->model, "SmolLM2-135M-Instruct.Q4_1");
  EXPECT_EQ(file->dtype, "bf16");
  EXPECT_THAT(file->devices, ElementsAre("gpu-a", "gpu-a", "gpu: b"));
  EXPECT_EQ(file->link, "10 Gbit/s");
  EXPECT_EQ(file->schedule, "kvr");
  EXPECT_EQ(file->date, "2026-01-31");
  EXPECT_EQ(file->block, 64);
  ASSERT_EQ(file->entries.size(), 2u);
  EXPECT_EQ(file->entries[0].width, 2);
  EXPECT_EQ(file->entries[0].tokens, 1024);
  EXPECT_THAT(file->entries[0].fractions, ElementsAre(.55, .45));
  EXPECT_EQ(file->entries[0].predicted_ttft_s, .21);
  EXPECT_EQ(file->entries[0].measured_ttft_s, .2);
  EXPECT_EQ(file->entries[0].spread_s, .01);
  EXPECT_THAT(file->entries[1].fractions, ElementsAre(.4, .35, .25));
  EXPECT_EQ(file->entries[1].predicted_ttft_s, std::nullopt);
  EXPECT_EQ(file->entries[1].measured_ttft_s, std::nullopt);
  EXPECT_EQ(file->entries[1].spread_s, std::nullopt);
}

TEST(PartitionFile, IsReadBackAsItWasPrinted) {
  PartitionFile file = ParsePartitionFile(kWhole, "t.yaml").value();
  file.model = "odd \"name\": \\ # \n \x01 \xc3\xa9";
  file.link = "1";
  file.date = "2026-01-31T12:00:00Z";
  file.entries[0].fractions = {1.0 / 3, 2.0 / 3};
  file.entries[0].measured_ttft_s = 0.123456789;
  const std::string text = PrintPartitionFile(file).value();
  const absl::StatusOr<PartitionFile> again = ParsePartitionFile(text, "again.yaml");
  ASSERT_TRUE(again.ok()) << again.status() << "\n" << text;
  EXPECT_EQ(again->model, file.model);
  EXPECT_EQ(again->link, file.link);
  EXPECT_EQ(again->date, file.date);
  EXPECT_EQ(again->devices, file.devices);
  EXPECT_EQ(again->block, 64);
  ASSERT_EQ(again->entries.size(), 2u);
  EXPECT_EQ(again->entries[0].fractions, file.entries[0].fractions) << "to the bit";
  EXPECT_EQ(again->entries[0].measured_ttft_s, 0.123457);
  EXPECT_EQ(again->entries[1].fractions, file.entries[1].fractions);
  EXPECT_EQ(again->entries[1].spread_s, std::nullopt);
  EXPECT_EQ(PrintPartitionFile(*again).value(), text);
}

TEST(PartitionFile, PrintsOneEntryALine) {
  PartitionFile file;
  file.entries = {{2, 1024, {.55, .45}, .25, .5, 0.0}, {1, 8, {1}, {}, {}, {}}};
  EXPECT_EQ(PrintPartitionFile(file).value(),
            "version: 1\n"
            "schedule: \"kvr\"\n"
            "entries:\n"
            "  - {width: 2, tokens: 1024, fractions: [0.55, 0.45], predicted_ttft_s: 0.25, measured_ttft_s: 0.5, "
            "spread_s: 0}\n"
            "  - {width: 1, tokens: 8, fractions: [1]}\n");
}

TEST(PartitionFile, NamesFileLineAndReason) {
  const std::string head = "version: 1\nschedule: kvr\nentries:\n";
  const std::string good = "  - {width: 1, tokens: 8, fractions: [1]}\n";
  const struct {
    std::string text;
    const char* start;
    const char* part;
  } cases[] = {
      {"", "t.yaml:1: version is missing", "write 'version: 1'"},
      {"schedule: kvr\nentries:\n" + good, "t.yaml:1: version is missing", "runahead plan search"},
      {"version: 2\nschedule: kvr\nentries:\n" + good, "t.yaml:1: version: 2 is out of range", ""},
      {"version: one", "t.yaml:1: version: 'one' is not a whole number", ""},
      {"version: 1\nentries:\n" + good, "t.yaml:1: schedule is missing", "kvr"},
      {"version: 1\nschedule: tsp\n", "t.yaml:2: schedule: 'tsp' is unknown", "kvr"},
      {"version: 1\nschedule: kvr\n", "t.yaml:1: entries is missing", ""},
      {"version: 1\nschedule: kvr\nentries: []\n", "t.yaml:3: entries: has 0 items, too few", ""},
      {"version: 1\nschedule: kvr\nentries: 3\n", "t.yaml:3: entries: is not a list", ""},
      {"version: 1\nmodell: x\n", "t.yaml:2: modell: unknown key", "'model'"},
      {"version: 1\nblock: 0\n", "t.yaml:2: block: 0 is out of range", ""},
      {"\ndate: yesterday\n" + head + good, "t.yaml:2: date: 'yesterday' is no date", "2026-01-31"},
      {"devices: [a]\n" + head + "  - {width: 2, tokens: 8, fractions: [.5, .5]}\n",
       "t.yaml:5: entries[0]: width: 2, but devices lists a line of 1", ""},
      {head + "  - {tokens: 8, fractions: [1]}\n", "t.yaml:4: entries[0].width is missing", ""},
      {head + "  - {width: 0, tokens: 8, fractions: [1]}\n", "t.yaml:4: entries[0].width: 0 is out of range", ""},
      {head + good + "  - {width: 1, tokens: 0, fractions: [1]}\n", "t.yaml:5: entries[1].tokens: 0 is out of range",
       ""},
      {head + "  - {width: 3, tokens: 2, fractions: [1]}\n", "t.yaml:4: entries[0]: tokens: 2 are less than one", ""},
      {head + "  - {width: 2, tokens: 8, fractions: [1]}\n", "t.yaml:4: entries[0]: fractions: 1 given, width 2", ""},
      {head + "  - {width: 2, tokens: 8, fractions: [.5, half]}\n",
       "t.yaml:4: entries[0].fractions: [1]: 'half' is not a finite number", ""},
      {head + "  - {width: 2, tokens: 8, fractions: [.5, nan]}\n", "t.yaml:4: entries[0].fractions: [1]: ", ""},
      {head + "  - {width: 2, tokens: 8, fractions: [.5, 1e999]}\n", "t.yaml:4: entries[0].fractions: [1]: ", ""},
      {head + "  - {width: 2, tokens: 8, fractions: [1.5, -.5]}\n",
       "t.yaml:4: entries[0].fractions: [0]: 1.5 is out of range", ""},
      {head + "  - {width: 2, tokens: 8, fractions: [.5, .6]}\n",
       "t.yaml:4: entries[0]: fractions: they add up to 1.1, not to 1", ""},
      {head + good + "\n" + good, "t.yaml:6: entries[1]: a second entry for width 1 and tokens 8", "t.yaml:4"},
      {head + "  - {width: 1, tokens: 8, fractions: [1], measured_ttft_s: 0}\n",
       "t.yaml:4: entries[0].measured_ttft_s: 0 is out of range", ""},
      {head + "  - {width: 1, tokens: 8, fractions: [1], spread_s: 0.1}\n",
       "t.yaml:4: entries[0]: spread_s: there is no", "measured_ttft_s"},
      {head + "  - {width: 1, tokens: 8, fractions: [1]\n", "t.yaml:", "not valid YAML"},
      {"version: 1\nversion: 1\n", "t.yaml:2: version: given a second time", ""},
  };
  for (const auto& c : cases) {
    const absl::Status status = ParsePartitionFile(c.text, "t.yaml").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.text;
    EXPECT_THAT(std::string(status.message()), AllOf(StartsWith(c.start), HasSubstr(c.part))) << c.text;
  }
}

TEST(PartitionFile, IsWrittenOnlyWhenItCanBeReadBack) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/partition_file_test_", getpid(), ".yaml");
  PartitionFile file;
  file.model = "m";
  file.entries = {{2, 1024, {.55, .45}, {}, {}, {}}};
  ASSERT_TRUE(WritePartitionFile(path, file).ok());
  EXPECT_EQ(ReadPartitionFile(path)->entries[0].tokens, 1024);

  file.entries[0].fractions = {.55, .55};
  const absl::Status refused = WritePartitionFile(path, file);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("add up to 1.1"));
  EXPECT_THAT(ReadPartitionFile(path)->entries[0].fractions, ElementsAre(.55, .45)) << "the old one is still there";
  std::filesystem::remove(path);
  EXPECT_EQ(ReadPartitionFile(path).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace runahead
