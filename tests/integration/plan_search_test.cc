// `runahead plan search` on a real chain: what it leaves when it is killed, how it goes on, and that a router uses it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "server/base/partition_file.h"
#include "server/base/text_file.h"
#include "tests/integration/local_cluster.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "tests/testing/test_process.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Key = std::pair<int64_t, int>;  // tokens, width

// One cluster for all tests of the file: starting processes is what takes long.
class PlanSearchTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_path_ = new std::string(WriteSynthetic(SmallModel(), "plan_search"));
    cluster_ = new LocalCluster(*model_path_, {"--prefill", "2", "--dtype", "f32", "--experiments"});
  }
  static void TearDownTestSuite() {
    delete cluster_;
    cluster_ = nullptr;
    delete model_path_;
  }

  PlanSearchTest() : folder_(absl::StrCat(::testing::TempDir(), "/plan_search_test.", getpid())) {
    std::filesystem::create_directory(folder_);
    table_ = folder_ + "/table.yaml";
  }
  ~PlanSearchTest() override { std::filesystem::remove_all(folder_); }

  std::vector<std::string> Command(const std::string& router, std::vector<std::string> more) const {
    more.insert(more.begin(), {RUNAHEAD_BINARY, "plan", "search", "--router", router, "-o", table_});
    return more;
  }

  void Run(const std::string& router, std::vector<std::string> more) {
    testing::TestProcess process(Command(router, std::move(more)));
    code_ = process.Wait();
    out_ = process.out();
    err_ = process.err();
  }

  // Starts a search that takes far longer than the test, waits for `text` on its stderr, sends the signal, and returns
  // the exit code.
  int Break(const std::string& text, int signal, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--tokens", "16,3500", "--widths", "1,2", "--repeats", "300", "--budget", "3600"});
    testing::TestProcess process(Command(cluster_->router(), std::move(more)));
    EXPECT_TRUE(process.ReadErrUntil(text)) << process.err();
    process.Signal(signal);
    const int code = process.Wait();
    err_ = process.err();
    return code;
  }

  std::string Text() const { return ReadTextFile(table_, 1 << 20).value(); }

  // The table, which must be a valid one.
  std::map<Key, PartitionFileEntry> Entries() const {
    const auto file = ReadPartitionFile(table_);
    EXPECT_TRUE(file.ok()) << file.status();
    std::map<Key, PartitionFileEntry> entries;
    if (file.ok()) {
      for (const PartitionFileEntry& entry : file->entries) entries[{entry.tokens, entry.width}] = entry;
    }
    return entries;
  }

  static std::string* model_path_;
  static LocalCluster* cluster_;
  std::string folder_, table_;
  int code_ = -1;
  std::string out_, err_;
};
std::string* PlanSearchTest::model_path_ = nullptr;
LocalCluster* PlanSearchTest::cluster_ = nullptr;

std::vector<int> PartsOf(const PartitionFileEntry& entry) {
  std::vector<int> parts;
  for (const double fraction : entry.fractions) {
    parts.push_back(static_cast<int>(fraction * static_cast<double>(entry.tokens) + 0.5));
  }
  return parts;
}

TEST_F(PlanSearchTest, KilledItLeavesNoTableOrAValidOneAndGoesOn) {
  // Before anything is finished there is no table.
  {
    testing::TestProcess process(
        Command(cluster_->router(), {"--tokens", "3500", "--widths", "1", "--repeats", "300", "--budget", "3600"}));
    process.Signal(SIGKILL);
    EXPECT_EQ(process.Wait(), 128 + SIGKILL);
    EXPECT_FALSE(std::filesystem::exists(table_));
  }
  EXPECT_EQ(Break("[1/4]", SIGKILL), 128 + SIGKILL);
  const auto killed = Entries();
  ASSERT_GE(killed.size(), 1u);
  ASSERT_LT(killed.size(), 4u);
  ASSERT_TRUE(killed.contains({16, 1}));
  EXPECT_GT(killed.at({16, 1}).measured_ttft_s, 0);

  Run(cluster_->router(), {"--tokens", "16,96", "--widths", "1,2", "--repeats", "2", "--resume", "--json"});
  ASSERT_EQ(code_, 0) << err_;
  const auto resumed = Entries();
  for (const Key& key : {Key(16, 1), Key(16, 2), Key(96, 1), Key(96, 2)}) {
    ASSERT_TRUE(resumed.contains(key)) << key.first << " tokens, width " << key.second;
    EXPECT_GT(resumed.at(key).measured_ttft_s, 0);
    EXPECT_GE(resumed.at(key).spread_s, 0);
  }
  EXPECT_EQ(resumed.at({16, 1}).measured_ttft_s, killed.at({16, 1}).measured_ttft_s) << "it was finished";
  const nlohmann::json json = nlohmann::json::parse(out_);
  EXPECT_EQ(json["entries"].size(), 4 - killed.size()) << out_;
  EXPECT_EQ(json["model"], "small");
  const auto file = ReadPartitionFile(table_);
  EXPECT_EQ(file->model, "small");
  EXPECT_EQ(file->dtype, "f32");
  EXPECT_EQ(file->schedule, "kvr");
  EXPECT_THAT(file->devices, ElementsAre("prefill-0", "prefill-1"));
  EXPECT_NE(file->date, "");
}

TEST_F(PlanSearchTest, InterruptedItKeepsWhatIsFinished) {
  for (const int signal : {SIGINT, SIGTERM}) {
    std::filesystem::remove(table_);
    EXPECT_EQ(Break("[1/4]", signal), 128 + signal) << err_;
    EXPECT_THAT(err_, HasSubstr("go on with --resume"));
    const auto entries = Entries();
    // The second one may have been finished before the signal came.
    EXPECT_GE(entries.size(), 1u);
    EXPECT_LT(entries.size(), 4u);
    EXPECT_TRUE(entries.contains({16, 1}));
  }
  // Long before the first entry: the old table stays as it is, even with --force.
  const std::string before = Text();
  testing::TestProcess process(Command(
      cluster_->router(), {"--tokens", "3500", "--widths", "1", "--repeats", "300", "--budget", "3600", "--force"}));
  EXPECT_TRUE(Eventually([&] { return cluster_->Metric("router", "runahead_requests_in_flight") > 0; }));
  process.Signal(SIGINT);
  EXPECT_EQ(process.Wait(), 128 + SIGINT);
  EXPECT_EQ(Text(), before);
  cluster_->ExpectAllFree();
}

// What the search kept and what it found, as a router takes it that was started with the table.
TEST_F(PlanSearchTest, ARouterFollowsTheTable) {
  PartitionFile kept;
  kept.model = "small";
  kept.dtype = "f32";
  kept.entries.resize(2);
  kept.entries[0].width = 1;
  kept.entries[0].tokens = 200;
  kept.entries[0].fractions = {1};
  kept.entries[0].measured_ttft_s = 10;
  kept.entries[1].width = 2;
  kept.entries[1].tokens = 200;
  kept.entries[1].fractions = {0.75, 0.25};
  kept.entries[1].measured_ttft_s = 0.001;
  ASSERT_TRUE(WritePartitionFile(table_, kept).ok());
  Run(cluster_->router(), {"--tokens", "96,200", "--widths", "1,2", "--repeats", "3", "--resume"});
  ASSERT_EQ(code_, 0) << err_;
  EXPECT_THAT(err_, HasSubstr("[2/2] 96 tokens on 2 workers: "));
  EXPECT_THAT(out_, HasSubstr("150 (75.0%), 50 (25.0%)"));
  const auto entries = Entries();

  LocalCluster cluster(*model_path_, {"--prefill", "2", "--dtype", "f32", "--table", table_});
  const Answer answer = cluster.Generate(Uncached(RequestOf(SyntheticIds(200, 1), 1)));
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_THAT(answer.started.plan().parts(), ElementsAre(150, 50));
  const Answer searched = cluster.Generate(Uncached(RequestOf(SyntheticIds(96, 1), 1)));
  ASSERT_TRUE(searched.status.ok()) << searched.status.error_message();
  EXPECT_THAT(searched.started.plan().parts(),
              ::testing::ElementsAreArray(PartsOf(entries.at({96, searched.started.plan().parts_size()}))));

  // It runs without --experiments: nothing can be searched there, and nothing is overwritten.
  const std::string before = Text();
  Run(cluster.router(), {"--tokens", "64", "--widths", "2", "--force"});
  EXPECT_EQ(code_, 1);
  EXPECT_THAT(err_, AllOf(HasSubstr("INVALID_ARGUMENT: experiment: this router runs without --experiments"),
                          HasSubstr("runahead up --experiments")));
  EXPECT_EQ(Text(), before);
}

TEST_F(PlanSearchTest, WhatCannotBeSearchedIsRefusedAndNothingIsOverwritten) {
  ASSERT_TRUE(WriteTextFile(table_,
                            "version: 1\nmodel: other\ndtype: f32\nschedule: kvr\nentries:\n"
                            "  - {width: 1, tokens: 64, fractions: [1], measured_ttft_s: 1}\n")
                  .ok());
  const std::string before = Text();
  struct Case {
    std::vector<std::string> more;
    int code;
    std::string text;
  };
  const std::vector<Case> cases = {
      {{"--tokens", "64", "--widths", "2"}, 2, "table.yaml exists; --resume completes it, --force starts anew"},
      {{"--tokens", "64", "--widths", "2", "--resume"}, 1, "the table was measured with model \"other\""},
      {{"--tokens", "64", "--widths", "2", "--resume", "--force"}, 2, "not both"},
      {{"--tokens", "64", "--widths", "3", "--force"}, 1, "--widths: 3 is more than the 2 prefill workers"},
      {{"--tokens", "64,4096", "--widths", "2", "--force"}, 1, "--tokens: 4096, and 1 of output, are more than"},
      {{"--tokens", "64,x", "--widths", "2", "--force"}, 2, "--tokens: 'x' is no whole number"},
      {{"--tokens", "0", "--widths", "1", "--force"}, 2, "--tokens: 0 is out of range"},
      {{"--tokens", "64", "--widths", "17", "--force"}, 2, "--widths: 17 is out of range; allowed: 1 to 16"},
      {{"--tokens", "1", "--widths", "2", "--force"}, 2, "--widths: 2 workers are more than one a token"},
      {{"--tokens", "64", "--widths", "2", "--force", "--budget", "0"}, 2, "--budget: 0 is out of range"},
      {{"--tokens", "64", "--widths", "2", "--force", "--repeats", "0"}, 2, "--repeats: 0 is out of range"},
      {{"--widths", "2", "--force"}, 2, "missing: --tokens"},
  };
  for (const Case& bad : cases) {
    SCOPED_TRACE(bad.text);
    Run(cluster_->router(), bad.more);
    EXPECT_EQ(code_, bad.code);
    EXPECT_THAT(err_, HasSubstr(bad.text));
    EXPECT_EQ(out_, "");
    EXPECT_EQ(Text(), before);
  }
}

}  // namespace
}  // namespace runahead
