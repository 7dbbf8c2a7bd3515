// The service with products in 8 bits, through a chain of two and a decode worker, on the quick-start model:
// teacher-forced over golden prompts it stays as near to f32 as the contract says (docs/architecture.md, 'Numerics on
// CPUs').
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "tests/golden/golden_files.h"
#include "tests/integration/local_cluster.h"
#include "tests/testing/model_fixture.h"

namespace runahead {
namespace {

// Tokens that are decoded after each prompt, and how much of the golden continuation follows prompts beside that.
constexpr size_t kDecoded = 8;
constexpr size_t kFurther[] = {15, 31};
// Longer ones take too long ten times over; these have two blocks of KV as well.
constexpr size_t kLongest = 300;

// Of a row of logits.
double LogOf(const std::vector<float>& logits, int32_t id) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return logits[id] - largest - std::log(sum);
}

// Greedy, through both prefill workers.
v1::GenerateRequest RequestThrough(const std::vector<int32_t>& ids, int max_tokens) {
  v1::GenerateRequest request = Uncached(RequestOf(ids, max_tokens));
  request.mutable_experiment()->set_width(2);
  request.mutable_sampling()->set_logprobs(20);
  return request;
}

// What is said of `id`; of one that is none of the twenty, what is said of the last: it has less.
double Said(const v1::TokenLogprobs& token, int32_t id) {
  for (const v1::TokenLogprob& each : token.top()) {
    if (each.id() == id) return each.logprob();
  }
  return token.top(token.top_size() - 1).logprob();
}

// Of what is said of golden tokens, in logarithms of probabilities.
struct Differences {
  std::vector<double> all;
  void Add(double is, double should) { all.push_back(std::abs(is - should)); }
  double mean() const { return std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size()); }
  double percentile_99() {
    std::sort(all.begin(), all.end());
    return all[all.size() * 99 / 100];
  }
};

// The contract is about divergences of rows, and of a row only what is said of its golden token is known here. Where
// two distributions are near each other, their divergence is half the mean square of the differences of logarithms,
// over tokens drawn from one of them; golden tokens are likelier ones, which move less. As in golden/int8_golden_test,
// rows are few: the 99th percentile has half as much again, and a normal distribution's factor.
struct Bounds {
  double mean = std::sqrt(2 * 1.1 * ReadGoldenDivergence().mean);
  double percentile_99 = 2.58 * std::sqrt(2 * 1.5 * ReadGoldenDivergence().percentile_99);
  // What lies between the two likeliest tokens is the difference of two such logarithms.
  double margin = std::sqrt(2) * percentile_99;
};

void ExpectWithin(const char* what, Differences differences) {
  SCOPED_TRACE(::testing::Message() << what << ", " << differences.all.size() << " rows");
  EXPECT_LE(differences.mean(), Bounds().mean);
  EXPECT_LE(differences.percentile_99(), Bounds().percentile_99);
  EXPECT_GT(differences.mean(), 0);
}

class Int8ServiceTest : public ::testing::Test {
 protected:
  // The prompt, and `k` tokens of its golden continuation.
  static std::vector<int32_t> Until(const GoldenPrompt& prompt, size_t k) {
    std::vector<int32_t> ids = prompt.ids;
    ids.insert(ids.end(), prompt.greedy.begin(), prompt.greedy.begin() + k);
    return ids;
  }
  // What f32 says of each golden token.
  static std::vector<double> Wanted(const LoadedModel& f32, const GoldenPrompt& prompt) {
    const size_t count = kFurther[std::size(kFurther) - 1];
    SequenceRunner runner(f32, static_cast<int64_t>(prompt.ids.size() + count));
    const auto logits = runner.Append(Until(prompt, count), /*batch_invariant=*/false, /*all_logits=*/true);
    std::vector<double> wanted;
    for (size_t k = 0; k <= count; ++k) wanted.push_back(LogOf(logits[prompt.ids.size() - 1 + k], prompt.greedy[k]));
    return wanted;
  }
  static void ExpectGoldenUnlessNear(int32_t id, const GoldenPrompt& prompt, size_t k) {
    EXPECT_TRUE(id == prompt.greedy[k] || prompt.margins[k] < Bounds().margin)
        << "token " << k << " is " << id << ", not " << prompt.greedy[k] << ", with a margin of " << prompt.margins[k];
  }

  // By the golden tokens that follow the prompt.
  std::map<size_t, Answer> Prefill(LocalCluster& cluster, const GoldenPrompt& prompt,
                                   const std::vector<double>& wanted) {
    std::vector<size_t> ks(kDecoded);
    std::iota(ks.begin(), ks.end(), 0);
    ks.insert(ks.end(), std::begin(kFurther), std::end(kFurther));
    std::map<size_t, Answer> answers;
    for (const size_t k : ks) {
      Answer& answer = answers[k] = cluster.Generate(RequestThrough(Until(prompt, k), 1));
      EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
      EXPECT_EQ(answer.started.plan().workers_size(), 2);
      if (answer.ids.size() != 1 || answer.logprobs.size() != 1) break;
      prefill_.Add(Said(answer.logprobs[0], prompt.greedy[k]), wanted[k]);
      ExpectGoldenUnlessNear(answer.ids[0], prompt, k);
    }
    return answers;
  }

  // Compares as long as the golden tokens come.
  void Decode(LocalCluster& cluster, const GoldenPrompt& prompt, const std::vector<double>& wanted,
              const std::map<size_t, Answer>& prefilled) {
    const Answer decoded = cluster.Generate(RequestThrough(prompt.ids, kDecoded));
    ASSERT_TRUE(decoded.status.ok()) << decoded.status.error_message();
    ASSERT_EQ(decoded.logprobs.size(), kDecoded);
    for (size_t k = 0; k < kDecoded; ++k) {
      const double said = Said(decoded.logprobs[k], prompt.greedy[k]);
      const Answer& of_prefill = prefilled.at(k);
      const double by_prefill = Said(of_prefill.logprobs[0], prompt.greedy[k]);
      if (k == 0) {
        EXPECT_EQ(said, by_prefill) << "the first token is prefill's own";
      } else {
        decode_.Add(said, wanted[k]);
        apart_.Add(said, by_prefill);
      }
      if (decoded.ids[k] != of_prefill.ids[0]) {
        EXPECT_LT(prompt.margins[k], Bounds().margin) << "token " << k << ", not what prefill gives";
      }
      ExpectGoldenUnlessNear(decoded.ids[k], prompt, k);
      if (decoded.ids[k] != prompt.greedy[k]) return;
    }
  }

  Differences prefill_, decode_;  // from f32
  Differences apart_;             // decode's from prefill's
};

TEST_F(Int8ServiceTest, KeepsTheContractThroughAChainAndInDecode) {
  if (QuickStartModelPath().empty()) GTEST_SKIP() << "RUNAHEAD_TEST_MODEL names no model; tests/run sets it";
  LocalCluster cluster(QuickStartModelPath(),
                       {"--device", "cpu", "--dtype", "int8", "--prefill", "2", "--threads", "1", "--experiments"});
  const LoadedModel f32 = LoadForTest(QuickStartModelPath(), DType::kF32, 2);
  for (const GoldenPrompt& prompt : ReadGoldenPrompts()) {
    if (prompt.ids.size() < 2 || prompt.ids.size() > kLongest) continue;
    SCOPED_TRACE(::testing::Message() << prompt.ids.size() << " tokens");
    const std::vector<double> wanted = Wanted(f32, prompt);
    const std::map<size_t, Answer> prefilled = Prefill(cluster, prompt, wanted);
    ASSERT_FALSE(HasFatalFailure() || prefilled.size() < kDecoded + std::size(kFurther));
    Decode(cluster, prompt, wanted, prefilled);
  }
  ASSERT_GT(prefill_.all.size(), 150u);
  ASSERT_GT(decode_.all.size(), 80u);
  ExpectWithin("prefill", prefill_);
  ExpectWithin("decode", decode_);
  ExpectWithin("decode beside prefill", apart_);
}

}  // namespace
}  // namespace runahead
