#include "server/router/live_table.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/text_file.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const ModelInfo kTiny{"tiny", "0123456789abcdef", 1000, 320, ""};

std::string Table(const std::string& fractions) {
  return absl::StrCat("version: 1\nmodel: tiny\nschedule: kvr\nentries:\n  - {width: 2, tokens: 100, fractions: [",
                      fractions, "]}\n");
}

class LiveTableTest : public ::testing::Test {
 protected:
  void SetUp() override { Open(); }
  void TearDown() override { std::filesystem::remove_all(path_); }

  void Open() {
    Write(Table(".6, .4"));
    auto table = LiveTable::Open(path_, kTiny);
    ASSERT_TRUE(table.ok()) << table.status();
    table_ = *std::move(table);
  }
  void Write(const std::string& text) { ASSERT_TRUE(WriteTextFile(path_, text).ok()); }
  // A look at the file, after the period.
  void Look() {
    now_ += kTablePeriod;
    table_->Poll(now_, metrics_);
  }
  std::vector<int64_t> Parts() const { return table_->Get()->Lookup(100, 2)->parts; }
  std::string Counted() {
    std::string counted;
    for (const std::string result : {"ok", "error"}) {
      const std::string text = registry_.Serialize();
      const std::string series = absl::StrCat("runahead_table_reloads_total{result=\"", result, "\"} ");
      const size_t at = text.find(series) + series.size();
      absl::StrAppend(&counted, result, " ", text.substr(at, text.find('\n', at) - at), " ");
    }
    return counted;
  }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/live_table_test_", getpid(), ".yaml");
  MetricRegistry registry_{"none"};
  RouterMetrics metrics_{registry_, "tiny"};
  absl::Time now_ = absl::UnixEpoch();
  std::unique_ptr<LiveTable> table_;
};

TEST_F(LiveTableTest, FollowsItsFile) {
  EXPECT_THAT(Parts(), ElementsAre(60, 40));
  const std::shared_ptr<const PartitionTable> before = table_->Get();
  Write(Table(".7, .3"));
  EXPECT_THAT(Parts(), ElementsAre(60, 40)) << "nobody has looked";
  Look();
  EXPECT_THAT(Parts(), ElementsAre(70, 30));
  EXPECT_THAT(before->Lookup(100, 2)->parts, ElementsAre(60, 40)) << "what is in use does not change";
  EXPECT_EQ(Counted(), "ok 1 error 0 ");
}

TEST_F(LiveTableTest, LooksOnceAPeriod) {
  Look();
  Write(Table(".7, .3"));
  table_->Poll(now_ + kTablePeriod - absl::Milliseconds(1), metrics_);
  EXPECT_THAT(Parts(), ElementsAre(60, 40));
  table_->Poll(now_ + kTablePeriod, metrics_);
  EXPECT_THAT(Parts(), ElementsAre(70, 30));
}

TEST_F(LiveTableTest, SeesAChangeThatKeepsSizeAndTime) {
  Look();
  const auto time = std::filesystem::last_write_time(path_);
  Write(Table(".7, .3"));
  std::filesystem::last_write_time(path_, time);
  Look();
  EXPECT_THAT(Parts(), ElementsAre(70, 30));
}

TEST_F(LiveTableTest, CountsNothingForAFileThatSaysTheSame) {
  Look();
  Write(Table(".6, .4"));
  Look();
  EXPECT_EQ(Counted(), "ok 0 error 0 ");
}

TEST_F(LiveTableTest, KeepsTheOldTableWhenTheNewOneIsBad) {
  for (const std::string& bad :
       {Table(".6, .5"), std::string("version: 1\n"), std::string("{"), std::string(), std::string("\xff\xfe")}) {
    Write(bad);
    Look();
    EXPECT_THAT(Parts(), ElementsAre(60, 40)) << bad;
  }
  EXPECT_EQ(Counted(), "ok 0 error 5 ");
  Look();
  EXPECT_EQ(Counted(), "ok 0 error 5 ") << "once a change";
  Write(Table(".7, .3"));
  Look();
  EXPECT_THAT(Parts(), ElementsAre(70, 30));
  EXPECT_EQ(Counted(), "ok 1 error 5 ");
}

TEST_F(LiveTableTest, KeepsTheTableOfItsModel) {
  Write("version: 1\nmodel: other\nschedule: kvr\nentries: [{width: 2, tokens: 100, fractions: [.7, .3]}]\n");
  ::testing::internal::CaptureStderr();
  Look();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr(" W "), HasSubstr("made for \"other\""), HasSubstr("stays in use")));
  EXPECT_THAT(Parts(), ElementsAre(60, 40));
}

TEST_F(LiveTableTest, DoubtsATableOfAnotherDtypeOnce) {
  EXPECT_FALSE(table_->DoubtOf("f32")) << "it does not say its dtype";
  Write("dtype: bf16\n" + Table(".7, .3"));
  Look();
  EXPECT_FALSE(table_->DoubtOf("")) << "no worker is ready";
  EXPECT_FALSE(table_->DoubtOf("bf16"));
  const auto doubt = table_->DoubtOf("f32");
  ASSERT_TRUE(doubt.has_value());
  EXPECT_THAT(*doubt, HasSubstr("was measured in bf16, but the workers compute in f32: it stays in use"));
  EXPECT_THAT(Parts(), ElementsAre(70, 30));
  Look();
  EXPECT_FALSE(table_->DoubtOf("f32")) << "said already";
  Write("dtype: bf16\n" + Table(".8, .2"));
  Look();
  EXPECT_TRUE(table_->DoubtOf("f32")) << "another table";
}

TEST_F(LiveTableTest, KeepsTheOldTableWhileTheFileIsGone) {
  std::filesystem::remove(path_);
  Look();
  Look();
  EXPECT_THAT(Parts(), ElementsAre(60, 40));
  EXPECT_EQ(Counted(), "ok 0 error 1 ");
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  Look();  // would never return if it waited for a writer
  EXPECT_EQ(Counted(), "ok 0 error 2 ");
  std::filesystem::remove(path_);
  Write(Table(".7, .3"));
  Look();
  EXPECT_THAT(Parts(), ElementsAre(70, 30));
  EXPECT_EQ(Counted(), "ok 1 error 2 ");
}

TEST_F(LiveTableTest, MayBeUsedWhileItReloads) {
  std::thread user([this] {
    int64_t head = 0;
    while (head != 99) {
      head = Parts()[0];
      EXPECT_TRUE(head == 60 || head == 70 || head == 99) << head;
    }
  });
  for (int i = 0; i < 20; ++i) {
    Write(Table(i % 2 == 0 ? ".7, .3" : ".6, .4"));
    Look();
  }
  Write(Table(".99, .01"));
  Look();
  user.join();
}

TEST(LiveTable, WithoutAFileSplitsEvenly) {
  MetricRegistry registry("none");
  RouterMetrics metrics(registry, "tiny");
  const std::unique_ptr<LiveTable> table = LiveTable::Open("", kTiny).value();
  table->Poll(absl::UnixEpoch(), metrics);
  EXPECT_THAT(table->Get()->Lookup(100, 2)->parts, ElementsAre(50, 50));
  EXPECT_THAT(LiveTable().Get()->Lookup(100, 2)->parts, ElementsAre(50, 50));
}

TEST(LiveTable, StartsOnlyWithAGoodFile) {
  const absl::Status missing = LiveTable::Open("/nowhere/table.yaml", kTiny).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), ::testing::StartsWith("table: "));
  EXPECT_THAT(std::string(missing.message()), HasSubstr("/nowhere/table.yaml"));
  EXPECT_FALSE(LiveTable::Open(::testing::TempDir(), kTiny).ok());
}

}  // namespace
}  // namespace runahead
