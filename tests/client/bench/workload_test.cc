#include "client/bench/workload.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

constexpr int kRequests = 300;

int Words(const std::string& text) {
  return 1 + static_cast<int>(std::count(text.begin(), text.end(), ' '));
}

TEST(Workload, LengthsFillTheirRange) {
  const Workload workload({.input = {20, 30}, .output = {5, 8}, .seed = 1}, {10, 11, 12});
  std::set<size_t> inputs;
  std::set<int32_t> outputs;
  for (int i = 0; i < kRequests; ++i) {
    const BenchRequest request = workload.Make(i);
    inputs.insert(request.ids.size());
    outputs.insert(request.max_tokens);
    EXPECT_TRUE(request.prompt.empty());
    EXPECT_TRUE(request.ignore_eos);
  }
  EXPECT_EQ(inputs, (std::set<size_t>{20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30}));
  EXPECT_EQ(outputs, (std::set<int32_t>{5, 6, 7, 8}));
}

TEST(Workload, NoTwoPromptsBeginAlike) {
  std::vector<int32_t> ids(100);
  for (int i = 0; i < 100; ++i) ids[i] = 1000 + i;
  const Workload of_ids({.input = {40, 40}, .output = {1, 1}, .seed = 1}, ids);
  const Workload of_words({.input = {40, 40}, .output = {1, 1}, .seed = 1}, {});
  std::set<std::vector<int32_t>> beginnings;
  std::set<std::string> texts;
  for (int i = 0; i < kRequests; ++i) {
    const BenchRequest request = of_ids.Make(i);
    for (const int32_t id : request.ids) ASSERT_TRUE(id >= 1000 && id < 1100) << id;
    beginnings.insert({request.ids.begin(), request.ids.begin() + 8});
    texts.insert(of_words.Make(i).prompt.substr(0, 40));
  }
  EXPECT_EQ(beginnings.size(), size_t{kRequests});
  EXPECT_EQ(texts.size(), size_t{kRequests});
}

TEST(Workload, WordsAreAsManyAsTokensAreAskedFor) {
  const Workload workload({.input = {50, 50}, .output = {1, 1}, .shared_prefix = 7, .seed = 3}, {});
  EXPECT_EQ(Words(workload.Make(0).prompt), 57);
}

TEST(Workload, ASharedPrefixIsSharedAndComesOnTop) {
  const Workload workload({.input = {10, 10}, .output = {1, 1}, .shared_prefix = 30, .seed = 3}, {1, 2, 3, 4, 5});
  const std::vector<int32_t> first = workload.Make(0).ids, second = workload.Make(1).ids;
  ASSERT_EQ(first.size(), 40u);
  EXPECT_TRUE(std::equal(first.begin(), first.begin() + 30, second.begin()));
  EXPECT_FALSE(std::equal(first.begin() + 30, first.end(), second.begin() + 30));
}

TEST(Workload, TheSeedDecides) {
  const WorkloadOptions one = {.input = {10, 90}, .output = {1, 9}, .seed = 3};
  WorkloadOptions other = one;
  other.seed = 4;
  EXPECT_EQ(Workload(one, {}).Make(5).prompt, Workload(one, {}).Make(5).prompt);
  EXPECT_NE(Workload(one, {}).Make(5).prompt, Workload(other, {}).Make(5).prompt);
}

TEST(LengthRange, IsANumberOrARange) {
  const auto one = ParseLengthRange("300");
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->least, 300);
  EXPECT_EQ(one->most, 300);
  const auto range = ParseLengthRange("200-800");
  ASSERT_TRUE(range.ok()) << range.status();
  EXPECT_EQ(range->least, 200);
  EXPECT_EQ(range->most, 800);
  for (const char* const wrong : {"", "0", "-5", "5-", "-", "8-2", "1-2-3", "a", "1.5", "99999999999", "1-10000001"}) {
    const auto refused = ParseLengthRange(wrong);
    EXPECT_FALSE(refused.ok()) << wrong;
    EXPECT_THAT(refused.status().message(), HasSubstr("200-800"));
  }
}

}  // namespace
}  // namespace runahead
