#include "client/plan/table_search.h"

#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/text_file.h"
#include "tests/testing/fake_clock.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The file is written for real, the chain and its clock are not.
class TableSearchTest : public ::testing::Test {
 protected:
  TableSearchTest() : folder_(absl::StrCat(::testing::TempDir(), "/table_search_test.", getpid())) {
    std::filesystem::create_directory(folder_);
    path_ = folder_ + "/t.yaml";
  }
  ~TableSearchTest() override { std::filesystem::remove_all(folder_); }

  TableSearch Search(PartitionFile table) {
    TableSearch::Chain chain;
    chain.time = [this](absl::Span<const int64_t> parts) -> absl::StatusOr<double> {
      clock_.Advance(absl::Seconds(1));
      // What was finished before is on the disk by now.
      on_disk_.push_back(ReadPartitionFile(path_).value_or(PartitionFile()).entries.size());
      if (static_cast<int>(on_disk_.size()) == fails_at_) return absl::CancelledError("interrupted");
      return static_cast<double>(parts[0]);
    };
    chain.workers = [] { return std::vector<std::string>{"a", "b"}; };
    table.model = "m";
    return TableSearch(path_, std::move(table), std::move(chain), clock_, {.repeats = 1, .budget = absl::Seconds(2)});
  }

  std::string folder_, path_;
  testing::FakeClock clock_;
  std::vector<size_t> on_disk_;
  int fails_at_ = 0;
};

TEST_F(TableSearchTest, EachEntryIsWrittenWhenItIsFinished) {
  TableSearch search = Search({});
  ASSERT_TRUE(search.Run(ItemsOf({100, 200}, {1})).ok());
  EXPECT_THAT(on_disk_, ElementsAre(0, 0, 1, 1));  // a warm-up and a run for each
  EXPECT_EQ(search.found(), 2u);
  const auto file = ReadPartitionFile(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->entries.size(), 2u);
  EXPECT_EQ(file->entries[1].measured_ttft_s, 200);
  EXPECT_EQ(file->date, "1970-01-01T00:00:04Z");
  EXPECT_THAT(file->devices, ElementsAre("a", "b"));
  const auto json = nlohmann::json::parse(search.Json());
  EXPECT_EQ(json["table"], path_);
  ASSERT_EQ(json["entries"].size(), 2u);
  EXPECT_EQ(json["entries"][0]["parts"], nlohmann::json({100}));
  EXPECT_EQ(json["entries"][0]["runs"], 2);
  EXPECT_EQ(json["entries"][0]["end"], "finished");
}

TEST_F(TableSearchTest, WhatIsCutOffInTheMiddleOfAnEntryIsNotInTheFile) {
  fails_at_ = 4;
  TableSearch search = Search({});
  EXPECT_TRUE(absl::IsCancelled(search.Run(ItemsOf({100, 200}, {1}))));
  EXPECT_EQ(search.found(), 1u);
  ASSERT_EQ(ReadPartitionFile(path_)->entries.size(), 1u);

  // The next one begins where this one was.
  fails_at_ = 0;
  on_disk_.clear();
  TableSearch next = Search(*ReadPartitionFile(path_));
  ASSERT_TRUE(next.Run(ItemsOf({100, 200}, {1})).ok());
  EXPECT_EQ(on_disk_.size(), 2u);
  EXPECT_EQ(next.found(), 1u);
  EXPECT_EQ(ReadPartitionFile(path_)->entries.size(), 2u);
}

TEST_F(TableSearchTest, AFileThatCannotBeWrittenEndsIt) {
  std::filesystem::remove_all(folder_);
  TableSearch search = Search({});
  const absl::Status status = search.Run(ItemsOf({100, 200}, {1}));
  EXPECT_THAT(status.message(), HasSubstr("cannot write " + path_));
  EXPECT_EQ(on_disk_.size(), 2u);
}

}  // namespace
}  // namespace runahead
