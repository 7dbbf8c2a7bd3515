#include "tests/golden/expect_scores.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/testing/chain_fixture.h"

namespace runahead {
namespace {

constexpr int32_t kLikeliest = 3;

std::vector<TokenLogprobPairs> ScoresOnChain(const LoadedModel& loaded, const std::vector<int64_t>& bounds,
                                             const std::vector<int32_t>& ids) {
  const int parts = static_cast<int>(bounds.size()) - 1;
  TestChain chain(loaded, parts, static_cast<int64_t>(ids.size()));
  for (int part = 0; part < parts; ++part) {
    PrefillJob job = chain.JobOf(1, 0, part, bounds, ids, {}, true, absl::InfiniteFuture());
    job.prompt_logprobs = kLikeliest;
    if (!job.tail()) job.next_id = ids[job.end()];
    chain.member(part).stage->Start(std::move(job));
  }
  std::vector<TokenLogprobPairs> scores;
  for (int part = 0; part < parts; ++part) {
    EXPECT_EQ(chain.member(part).news.AwaitDone(1), absl::OkStatus());
    const auto own = chain.member(part).news.scores(1);
    scores.insert(scores.end(), own.begin(), own.end());
  }
  return scores;
}

// The token's own pair comes first, then the others.
void ExpectScore(const TokenLogprobPairs& actual, int32_t id, const GoldenScore& golden) {
  ASSERT_EQ(actual.size(), size_t{1} + kLikeliest);
  const double tolerance = 2 * RowTolerance(golden.largest);
  EXPECT_EQ(actual[0].id, id);
  EXPECT_NEAR(actual[0].logprob, golden.logprob, tolerance);
  auto others = golden.likeliest;
  std::erase_if(others, [id](const auto& pair) { return pair.first == id; });
  const auto apart = [&](size_t i, size_t j) { return others[i].second - others[j].second > tolerance; };
  for (size_t i = 0; i < others.size(); ++i) {
    EXPECT_NEAR(actual[1 + i].logprob, others[i].second, tolerance) << "other " << i;
    // What comes behind the last one is not known.
    const bool decided = i + 1 < others.size() && apart(i, i + 1) && (i == 0 || apart(i - 1, i));
    EXPECT_TRUE(!decided || actual[1 + i].id == others[i].first) << "other " << i << " is " << actual[1 + i].id;
  }
}

}  // namespace

void ExpectScores(const LoadedModel& loaded, const GoldenScores& text) {
  ASSERT_EQ(text.scores.size() + 1, text.ids.size());
  const auto tokens = static_cast<int64_t>(text.ids.size());
  for (const std::vector<int64_t>& bounds : std::vector<std::vector<int64_t>>{
           {0, tokens}, {0, tokens * 7 / 10, tokens}, {0, tokens * 2 / 5, tokens - 1, tokens}}) {
    SCOPED_TRACE(absl::StrCat("parts end at ", absl::StrJoin(bounds, ", ")));
    const std::vector<TokenLogprobPairs> scores = ScoresOnChain(loaded, bounds, text.ids);
    ASSERT_EQ(scores.size(), text.scores.size());
    for (size_t i = 0; i < scores.size(); ++i) {
      SCOPED_TRACE(absl::StrCat("token ", i + 1));
      ExpectScore(scores[i], text.ids[i + 1], text.scores[i]);
    }
  }
}

}  // namespace runahead
