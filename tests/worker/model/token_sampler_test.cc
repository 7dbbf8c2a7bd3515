#include "worker/model/token_sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/count_penalties.h"
#include "tests/testing/device_tensor.h"
#include "tests/testing/test_device.h"

namespace runahead {
namespace {

using testing::CountPenalties;
using ::testing::HasSubstr;

struct Draw {
  std::vector<float> logits;
  SamplingOptions options;
  int64_t position = 0;
  PenaltyCounts counts;
  std::vector<uint32_t> allowed = {};
};

// A mask of these ids alone.
std::vector<uint32_t> MaskOf(const std::vector<int32_t>& ids, int64_t vocab) {
  std::vector<uint32_t> mask(MaskWords(vocab));
  for (const int32_t id : ids) mask[id / 32] |= 1u << (id % 32);
  return mask;
}

class Sampler : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = OpenTestDevice(DType::kF32, 2);
    RUNAHEAD_SKIP_WITHOUT_DEVICE(opened.status());
    memory_.emplace(*std::move(opened));
  }
  Device& device() { return memory_->device(); }
  Stream& stream() { return memory_->stream(); }
  Tensor Rows(const std::vector<float>& logits, int64_t rows) { return memory_->NewTensor(logits, rows); }

  // One step with a row for each.
  std::vector<absl::StatusOr<Sampled>> Step(const std::vector<Draw>& draws) {
    const auto n = static_cast<int64_t>(draws.size());
    auto sampler = TokenSampler::Create(device(), n, draws[0].logits.size());
    RUNAHEAD_CHECK(sampler.ok());
    std::vector<float> logits;
    std::vector<TokenSampler::Row> rows;
    for (const Draw& draw : draws) {
      logits.insert(logits.end(), draw.logits.begin(), draw.logits.end());
      const auto sequence_row = (*sampler)->TakeRow(stream(), draw.options, draw.counts);
      RUNAHEAD_CHECK(sequence_row.ok());
      rows.push_back({draw.options, draw.position, draw.counts, *sequence_row, {}, {}, draw.allowed});
    }
    EXPECT_EQ((*sampler)->Enqueue(stream(), Rows(logits, n), rows), absl::OkStatus());
    memory_->Finish();
    std::vector<absl::StatusOr<Sampled>> tokens;
    for (int64_t row = 0; row < n; ++row) tokens.push_back((*sampler)->Token(row));
    return tokens;
  }
  absl::StatusOr<Sampled> SampleToken(const std::vector<float>& logits, const SamplingOptions& options,
                                      const PenaltyCounts& counts, int64_t position) {
    return Step({{logits, options, position, counts}})[0];
  }
  int32_t Sample(const std::vector<float>& logits, const SamplingOptions& options, int64_t position = 0,
                 const std::vector<int32_t>& ids = {}, size_t output_begin = 0) {
    const absl::StatusOr<Sampled> sampled =
        SampleToken(logits, options, CountPenalties(options, ids, output_begin), position);
    EXPECT_TRUE(sampled.ok()) << sampled.status();
    return sampled.ok() ? sampled->id : -1;
  }

 private:
  std::optional<DeviceMemory> memory_;
};

// The distribution by sorting everything, in double: what the filters mean, in the plainest words.
std::vector<double> ReferenceDistribution(const std::vector<float>& logits, const SamplingOptions& options,
                                          const std::vector<int32_t>& ids, size_t output_begin) {
  const size_t vocab = logits.size();
  std::vector<double> x(logits.begin(), logits.end());
  for (size_t v = 0; v < vocab; ++v) {
    const auto count = [&](size_t from) { return std::count(ids.begin() + from, ids.end(), static_cast<int32_t>(v)); };
    if (count(0) > 0) x[v] = x[v] > 0 ? x[v] / options.repetition_penalty : x[v] * options.repetition_penalty;
    if (count(output_begin) > 0) x[v] -= options.presence_penalty;
    x[v] -= options.frequency_penalty * count(output_begin);
    x[v] /= options.temperature;
  }
  std::vector<size_t> order(vocab);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return x[a] > x[b]; });
  if (options.top_k > 0 && order.size() > static_cast<size_t>(options.top_k)) order.resize(options.top_k);
  std::vector<double> p(vocab, 0.0);
  double sum = 0;
  for (const size_t v : order) sum += p[v] = std::exp(x[v] - x[order[0]]);
  double seen = 0;
  size_t kept = 0;
  while (kept < order.size() && seen < options.top_p * sum) seen += p[order[kept++]];
  for (size_t i = kept; i < order.size(); ++i) p[order[i]] = 0;
  for (double& value : p) {
    if (value < options.min_p) value = 0;
  }
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& value : p) value /= total;
  return p;
}

int32_t ReferenceDraw(const std::vector<double>& p, double u) {
  double seen = 0;
  for (size_t v = 0; v < p.size(); ++v) {
    seen += p[v];
    if (u < seen) return static_cast<int32_t>(v);
  }
  return -1;
}

TEST_F(Sampler, GreedyTakesTheSmallerIdOfATie) {
  EXPECT_EQ(Sample({1, 3, 3, 2}, {}), 1);
  EXPECT_EQ(Sample({-0.0f, 0.0f}, {}), 0);
  EXPECT_EQ(Sample({-5}, {}), 0);
}

TEST_F(Sampler, GreedySeesPenalties) {
  SamplingOptions options;
  options.repetition_penalty = 2;
  EXPECT_EQ(Sample({3, 2, -1}, options, 1, {0}, 1), 1);
  EXPECT_EQ(Sample({-3, -2, -10}, options, 1, {1}, 1), 0);  // -2 becomes -4
  options = {};
  options.presence_penalty = 1.5;
  EXPECT_EQ(Sample({3, 2, 0}, options, 1, {0}, 1), 0) << "the prompt does not count";
  EXPECT_EQ(Sample({3, 2, 0}, options, 2, {2, 0}, 1), 1);
  options = {};
  options.frequency_penalty = 0.4;
  EXPECT_EQ(Sample({3, 2, 0}, options, 2, {0, 0}, 0), 0);
  EXPECT_EQ(Sample({3, 2, 0}, options, 3, {0, 0, 0}, 0), 1);
  EXPECT_EQ(Sample({3, 2, 0}, options, 3, {-1, 7, 99}, 0), 0) << "ids outside the vocabulary";
}

TEST_F(Sampler, LogitsThatAreNotFiniteAreInternal) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    const absl::Status status = SampleToken({1, 2, bad, 4}, {}, {}, 17).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(status.ToString(), HasSubstr("position 17 are not finite"));
  }
}

// What the penalties mean, said over all ids of the sequence.
std::vector<float> Penalised(std::vector<float> logits, const SamplingOptions& options, const std::vector<int32_t>& ids,
                             size_t output_begin) {
  for (int32_t v = 0; v < static_cast<int32_t>(logits.size()); ++v) {
    if (std::count(ids.begin(), ids.end(), v) == 0) continue;
    float& logit = logits[v];
    logit = logit > 0 ? logit / options.repetition_penalty : logit * options.repetition_penalty;
    const auto in_output = std::count(ids.begin() + output_begin, ids.end(), v);
    if (in_output > 0) logit -= options.presence_penalty + options.frequency_penalty * static_cast<float>(in_output);
  }
  return logits;
}

TEST_F(Sampler, CountsKeptTokenByTokenPenaliseExactlyWhatTheWholeSequenceSays) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 3);
  const auto one_of = [&](std::vector<float> values) { return values[random() % values.size()]; };
  for (int run = 0; run < (TestDeviceIsSlow() ? 20 : 300); ++run) {
    SamplingOptions options, plain;
    options.temperature = plain.temperature = one_of({0, 1});
    options.top_p = plain.top_p = one_of({1, 0.9f});
    options.repetition_penalty = one_of({1, 1.3f, 0.5f});
    options.presence_penalty = one_of({0, 0.7f, -0.5f});
    options.frequency_penalty = one_of({0, 0.25f});
    options.seed = plain.seed = random();
    const int32_t vocab = 1 + random() % 60;
    std::vector<int32_t> ids(random() % 100);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % (vocab + 3)) - 1;
    const size_t prompt = ids.size();
    PenaltyCounts counts(options, ids);
    auto sampler = TokenSampler::Create(device(), 1, vocab);
    ASSERT_TRUE(sampler.ok());
    const auto sequence_row = (*sampler)->TakeRow(stream(), options, counts);
    ASSERT_TRUE(sequence_row.ok());
    EXPECT_EQ(*sequence_row != nullptr, HasPenalties(options));
    for (int step = 0; step < 30; ++step) {
      std::vector<float> logits(vocab);
      for (float& logit : logits) logit = normal(random);
      const int64_t position = static_cast<int64_t>(ids.size());
      const Tensor row = Rows(logits, 1);
      // A step that is tried again counts nothing twice.
      for (int tries = 0; tries < 1 + step % 2; ++tries) {
        ASSERT_EQ((*sampler)->Enqueue(stream(), row, {{options, position, counts, *sequence_row}}), absl::OkStatus());
      }
      ASSERT_EQ(device().Record(stream()).Wait(), absl::OkStatus());
      const absl::StatusOr<Sampled> sampled = (*sampler)->Token(0);
      ASSERT_TRUE(sampled.ok());
      ASSERT_EQ(sampled->id, SampleToken(Penalised(logits, options, ids, prompt), plain, {}, position)->id);
      ids.push_back(sampled->id);
      counts.AddOutput(sampled->id);
    }
  }
}

TEST_F(Sampler, ARowIsFreeAgainWhenItsSequenceIsGone) {
  auto sampler = TokenSampler::Create(device(), 2, 5);
  ASSERT_TRUE(sampler.ok());
  const SamplingOptions options{.presence_penalty = 1};
  auto first = (*sampler)->TakeRow(stream(), options, {}), second = (*sampler)->TakeRow(stream(), options, {});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ((*sampler)->TakeRow(stream(), options, {}).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE((*sampler)->TakeRow(stream(), {}, {}).ok()) << "no penalties, no row";
  const int32_t freed = **first;
  first->reset();
  const auto third = (*sampler)->TakeRow(stream(), options, CountPenalties(options, {2}, 0));
  ASSERT_TRUE(third.ok());
  EXPECT_EQ(**third, freed);
}

TEST_F(Sampler, ABiasIsAddedBeforeAllElseAndLogprobsDoNotSeeIt) {
  SamplingOptions options;
  options.logit_bias = {{2, 100}};
  EXPECT_EQ(Sample({3, 2, -50, 1}, options), 2);
  options.logit_bias = {{0, -100}, {1, -0.5f}};
  EXPECT_EQ(Sample({3, 2, -1, 1}, options), 1);
  options.repetition_penalty = 2;
  EXPECT_EQ(Sample({3, 2, -1, 1}, options, 1, {1}, 1), 3) << "2 becomes 1.5, then 0.75";
  options = {};
  options.logit_bias = {{1, 50}};
  options.logprobs = 1;
  const absl::StatusOr<Sampled> biased = SampleToken({3, 2, -1}, options, {}, 4);
  options.logit_bias.clear();
  const absl::StatusOr<Sampled> plain = SampleToken({3, 2, -1}, options, {}, 4);
  ASSERT_TRUE(biased.ok() && plain.ok());
  ASSERT_EQ(biased->id, 1);
  ASSERT_EQ(plain->id, 0);
  EXPECT_EQ(biased->logprobs[0].logprob, plain->logprobs[1].logprob);
  EXPECT_EQ(biased->logprobs[1].logprob, plain->logprobs[0].logprob);
}

TEST_F(Sampler, ARowWithABiasAndOneWithoutAreDrawnTogether) {
  const std::vector<float> logits = {3, 2, -1};
  std::vector<Draw> draws(4, Draw{logits, {}, 0, {}});
  draws[1].options.logit_bias = {{2, 9}};
  draws[3].options.logit_bias = {{1, 9}};
  draws[3].options.presence_penalty = 2;
  draws[3].counts = CountPenalties(draws[3].options, {0, 1}, 1);
  std::vector<int32_t> ids;
  for (const absl::StatusOr<Sampled>& sampled : Step(draws)) ids.push_back(sampled->id);
  EXPECT_THAT(ids, ::testing::ElementsAre(0, 2, 0, 1));
}

TEST_F(Sampler, ARowThatWasAnothersHasNothingOfItsBias) {
  auto sampler = TokenSampler::Create(device(), 1, 3);
  ASSERT_TRUE(sampler.ok());
  SamplingOptions options;
  const PenaltyCounts counts;
  const auto draw = [&] {
    const auto sequence_row = (*sampler)->TakeRow(stream(), options, counts);
    EXPECT_TRUE(sequence_row.ok() && *sequence_row != nullptr) << sequence_row.status();
    EXPECT_EQ((*sampler)->Enqueue(stream(), Rows({3, 2, 1}, 1), {{options, 0, counts, *sequence_row}}),
              absl::OkStatus());
    EXPECT_EQ(device().Record(stream()).Wait(), absl::OkStatus());
    return (*sampler)->Token(0)->id;
  };
  options.presence_penalty = 1;
  EXPECT_EQ(draw(), 0) << "penalties alone";
  options.logit_bias = {{1, 5}};
  EXPECT_EQ(draw(), 1);
  options.logit_bias = {{2, 4}};
  EXPECT_EQ(draw(), 2);
}

TEST_F(Sampler, NothingIsDrawnThatAMaskForbids) {
  std::vector<float> logits(70);
  for (size_t id = 0; id < logits.size(); ++id) logits[id] = static_cast<float>(id);
  SamplingOptions seeded;
  seeded.temperature = 1;
  SamplingOptions biased;
  biased.logit_bias = {{64, 100}, {3, 40}};
  std::vector<Draw> draws;
  draws.push_back({logits, {}, 0, {}, MaskOf({1, 33, 65}, 70)});
  draws.push_back({logits, {}, 0, {}});
  draws.push_back({logits, seeded, 0, {}, MaskOf({12}, 70)});
  draws.push_back({logits, biased, 0, {}, MaskOf({3, 40}, 70)});
  std::vector<int32_t> ids;
  for (const absl::StatusOr<Sampled>& sampled : Step(draws)) ids.push_back(sampled->id);
  EXPECT_THAT(ids, ::testing::ElementsAre(65, 69, 12, 3));
}

TEST_F(Sampler, RowsOfOneSequenceHaveAMaskEach) {
  SamplingOptions options;
  options.presence_penalty = 5;
  options.logit_bias = {{4, 3}};
  PenaltyCounts counts(options, {});
  counts.AddOutput(0);
  auto sampler = TokenSampler::Create(device(), 3, 5);
  ASSERT_TRUE(sampler.ok());
  const auto sequence_row = (*sampler)->TakeRow(stream(), options, counts);
  ASSERT_TRUE(sequence_row.ok());
  const std::vector<int32_t> ahead = {4, 1};
  const std::vector<uint32_t> second = MaskOf({0, 2, 4}, 5), third = MaskOf({1, 2, 3}, 5);
  std::vector<TokenSampler::Row> rows;
  for (size_t i = 0; i < 3; ++i) {
    const absl::Span<const uint32_t> allowed = i == 0   ? absl::Span<const uint32_t>()
                                               : i == 1 ? absl::MakeConstSpan(second)
                                                        : absl::MakeConstSpan(third);
    rows.push_back({options,
                    1 + static_cast<int64_t>(i),
                    counts,
                    *sequence_row,
                    {},
                    absl::MakeConstSpan(ahead).subspan(0, i),
                    allowed});
  }
  const std::vector<float> logits = {5, 4, 3, 2, 1.5f};
  std::vector<float> all;
  for (int i = 0; i < 3; ++i) all.insert(all.end(), logits.begin(), logits.end());
  // 5, 4, 3, 2, 4.5 with the bias; less 5 for 0, then for 4, then for 1.
  ASSERT_EQ((*sampler)->Enqueue(stream(), Rows(all, 3), rows), absl::OkStatus());
  ASSERT_EQ(device().Record(stream()).Wait(), absl::OkStatus());
  EXPECT_EQ((*sampler)->Token(0)->id, 4);
  EXPECT_EQ((*sampler)->Token(1)->id, 2);
  EXPECT_EQ((*sampler)->Token(2)->id, 2);
}

// A step's ops may go to the device as one piece, with other masks the next time, or with none.
TEST_F(Sampler, MasksOfStepsThatAreKeptAreThoseOfEachStep) {
  auto sampler = TokenSampler::Create(device(), 2, 40);
  ASSERT_TRUE(sampler.ok());
  const Tensor logits = Rows(std::vector<float>(80, 1.0f), 2);
  const PenaltyCounts counts;
  const SamplingOptions options;
  for (int32_t step = 0; step < 12; ++step) {
    const std::vector<uint32_t> first = MaskOf({step, 39}, 40), second = MaskOf({38 - step}, 40);
    std::vector<TokenSampler::Row> rows(2, {options, 0, counts, nullptr});
    if (step % 4 != 3) rows[0].allowed = first;
    if (step % 3 != 2) rows[1].allowed = second;
    device().BeginStep(stream());
    ASSERT_EQ((*sampler)->Enqueue(stream(), logits, rows), absl::OkStatus());
    device().EndStep(stream());
    ASSERT_EQ(device().Record(stream()).Wait(), absl::OkStatus());
    EXPECT_EQ((*sampler)->Token(0)->id, step % 4 != 3 ? step : 0);
    EXPECT_EQ((*sampler)->Token(1)->id, step % 3 != 2 ? 38 - step : 0);
  }
}

TEST_F(Sampler, AMaskWithoutAnIdIsSaidToBeTheRequests) {
  const std::vector<float> logits = {1, 2, 3};
  const auto tokens = Step({{logits, {}, 17, {}, MaskOf({}, 3)}, {logits, {}, 5, {}}});
  EXPECT_EQ(tokens[0].status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(tokens[0].status().message()), HasSubstr("no token may follow at position 17"));
  EXPECT_EQ(tokens[1]->id, 2);
}

TEST_F(Sampler, AMaskOfAnotherSizeIsRefused) {
  auto sampler = TokenSampler::Create(device(), 1, 33);
  const std::vector<uint32_t> mask(1, 1);
  const absl::Status status = (*sampler)->Enqueue(stream(), Rows(std::vector<float>(33), 1),
                                                  {{SamplingOptions(), 0, PenaltyCounts(), nullptr, {}, {}, mask}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("1 words"));
}

TEST_F(Sampler, ARowDoesNotDependOnThoseBesideIt) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 3);
  std::vector<Draw> draws(9);
  for (int i = 0; i < 9; ++i) {
    draws[i].logits.resize(301);
    for (float& logit : draws[i].logits) logit = normal(random);
    draws[i].options.temperature = i % 4 == 0 ? 0 : 1;
    draws[i].options.top_p = i % 2 == 0 ? 1 : 0.8f;
    draws[i].options.repetition_penalty = i % 3 == 0 ? 1 : 1.5f;
    draws[i].options.logprobs = i % 3 - 1 + (i == 8 ? 18 : 0);
    draws[i].options.seed = i;
    draws[i].position = 100 + i;
    draws[i].counts = CountPenalties(draws[i].options, {i, 2 * i, 7}, 1);
  }
  const std::vector<absl::StatusOr<Sampled>> together = Step(draws);
  for (size_t i = 0; i < draws.size(); ++i) {
    const absl::StatusOr<Sampled> alone = Step({draws[i]})[0];
    ASSERT_TRUE(alone.ok() && together[i].ok());
    EXPECT_EQ(together[i]->id, alone->id) << i;
    ASSERT_EQ(together[i]->logprobs.size(), alone->logprobs.size()) << i;
    EXPECT_EQ(alone->logprobs.size(), static_cast<size_t>(draws[i].options.logprobs + 1)) << i;
    for (size_t k = 0; k < alone->logprobs.size(); ++k) {
      EXPECT_EQ(together[i]->logprobs[k].id, alone->logprobs[k].id) << i;
      EXPECT_EQ(together[i]->logprobs[k].logprob, alone->logprobs[k].logprob) << i;
    }
  }
}

TEST_F(Sampler, CountsHoldOnlyWhatCanBePenalised) {
  const std::vector<int32_t> prompt = {5, 7, 5, 5};
  SamplingOptions options;
  const auto counted = [&] {
    PenaltyCounts counts(options, prompt);
    for (const int32_t id : {9, 5, 9}) counts.AddOutput(id);
    std::map<int32_t, int32_t> entries;
    for (const auto& [id, in_output] : counts.entries()) EXPECT_TRUE(entries.emplace(id, in_output).second);
    return entries;
  };
  using Entries = std::map<int32_t, int32_t>;
  EXPECT_EQ(counted(), Entries());
  options.presence_penalty = 1;
  EXPECT_EQ(counted(), (Entries{{5, 1}, {9, 2}})) << "the prompt is only repeated, never present or frequent";
  options.repetition_penalty = 1.1f;
  EXPECT_EQ(counted(), (Entries{{5, 1}, {7, 0}, {9, 2}}));
}

// Rows of a step that are of one sequence, each behind tokens of those before it, which the sequence keeps in part:
// each draws as if it were alone behind all that comes before it.
TEST_F(Sampler, RowsOfOneSequenceDrawAsEachAloneBehindTheTokensBeforeIt) {
  constexpr int64_t kVocab = 19, kMostRows = 6;
  std::mt19937 random(21);
  std::normal_distribution<float> normal(0, 2);
  const auto any_id = [&] { return static_cast<int32_t>(random() % kVocab); };
  for (const float temperature : {0.0f, 1.0f}) {
    SamplingOptions options;
    options.temperature = temperature;
    options.repetition_penalty = 1.4f;
    options.presence_penalty = 0.7f;
    options.frequency_penalty = 0.5f;
    options.seed = 5;
    PenaltyCounts counts(options, {1, 2, 3, 3});
    counts.AddOutput(4);
    auto sampler = TokenSampler::Create(device(), kMostRows, kVocab);
    ASSERT_TRUE(sampler.ok()) << sampler.status();
    const auto sequence_row = (*sampler)->TakeRow(stream(), options, counts);
    ASSERT_TRUE(sequence_row.ok()) << sequence_row.status();
    std::vector<int32_t> fresh = {4};
    int64_t position = 5;
    for (int step = 0; step < (TestDeviceIsSlow() ? 10 : 60); ++step) {
      const auto n = static_cast<size_t>(1 + random() % kMostRows);
      std::vector<int32_t> ahead;
      for (size_t i = 1; i < n; ++i) ahead.push_back(any_id());
      std::vector<float> logits(n * kVocab);
      for (float& logit : logits) logit = normal(random);
      std::vector<TokenSampler::Row> rows;
      const absl::Span<const int32_t> all = ahead;
      for (size_t i = 0; i < n; ++i) {
        rows.push_back({options, position + static_cast<int64_t>(i), counts, *sequence_row, fresh, all.subspan(0, i)});
      }
      const Tensor on_device = Rows(logits, static_cast<int64_t>(n));
      for (int tries = 0; tries < 2; ++tries) {
        ASSERT_EQ((*sampler)->Enqueue(stream(), on_device, rows), absl::OkStatus());
      }
      ASSERT_TRUE(device().Record(stream()).Wait().ok());
      PenaltyCounts alone = counts;
      for (size_t i = 0; i < n; ++i) {
        if (i > 0) alone.AddOutput(ahead[i - 1]);
        const std::vector<float> own(logits.begin() + i * kVocab, logits.begin() + (i + 1) * kVocab);
        const auto want = SampleToken(own, options, alone, position + static_cast<int64_t>(i));
        const auto got = (*sampler)->Token(static_cast<int64_t>(i));
        ASSERT_TRUE(want.ok() && got.ok());
        ASSERT_EQ(got->id, want->id) << "row " << i << " of " << n << " in step " << step;
      }
      // Some of them are kept, then comes another token.
      fresh.assign(ahead.begin(), ahead.begin() + static_cast<int64_t>(random() % n));
      fresh.push_back(any_id());
      for (const int32_t id : fresh) counts.AddOutput(id);
      position += static_cast<int64_t>(fresh.size());
    }
  }
}

TEST_F(Sampler, MoreTokensThanADrawMayBringAreRefused) {
  SamplingOptions options;
  options.presence_penalty = 1;
  const std::vector<int32_t> ahead(kMostTokenCounts, 1);
  PenaltyCounts counts(options, {});
  counts.AddOutput(2);
  auto sampler = TokenSampler::Create(device(), 1, 4);
  const auto sequence_row = (*sampler)->TakeRow(stream(), options, counts);
  const Tensor logits = Rows({1, 2, 3, 4}, 1);
  const absl::Status status = (*sampler)->Enqueue(stream(), logits, {{options, 3, counts, *sequence_row, {}, ahead}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("17 tokens"));
  EXPECT_TRUE((*sampler)->Enqueue(stream(), logits, {{{}, 3, counts, nullptr, {}, ahead}}).ok()) << "no penalties";
}

TEST_F(Sampler, HugeLogitsUnderPenaltiesStillDraw) {
  SamplingOptions options;
  options.temperature = 1;
  options.repetition_penalty = 0.01f;
  EXPECT_EQ(Sample({3e38f, -3e38f}, options, 1, {0, 1}, 2), 0);
  options.temperature = 1e-30f;
  EXPECT_EQ(Sample({1, 2, 1.5f}, options), 1);
}

TEST_F(Sampler, ADrawIsAFunctionOfSeedAndPosition) {
  // Known values: a request that is replayed after an upgrade must give the same tokens.
  EXPECT_DOUBLE_EQ(SamplingUniform(0, 0), SamplingUniform(0, 0));
  std::vector<double> all;
  for (uint64_t seed : {0ull, 1ull, 2ull, ~0ull}) {
    for (int64_t position = 0; position < 4; ++position) all.push_back(SamplingUniform(seed, position));
  }
  for (const double u : all) {
    EXPECT_GE(u, 0);
    EXPECT_LT(u, 1);
    EXPECT_EQ(std::count(all.begin(), all.end(), u), 1);
  }
  double mean = 0;
  std::vector<int> tenth(10);
  for (int i = 0; i < 20000; ++i) {
    const double u = SamplingUniform(1234, i);
    mean += u / 20000;
    ++tenth[static_cast<int>(u * 10)];
  }
  EXPECT_NEAR(mean, 0.5, 0.01);
  for (const int count : tenth) EXPECT_NEAR(count, 2000, 200);
}

TEST_F(Sampler, AgreesWithTheReferenceOnRandomOptions) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0, 3);
  const auto one_of = [&](std::vector<float> values) { return values[random() % values.size()]; };
  for (int run = 0; run < (TestDeviceIsSlow() ? 100 : 3000); ++run) {
    std::vector<float> logits(1 + random() % 200);
    const bool coarse = run % 3 == 0;  // many ties
    for (float& logit : logits) logit = coarse ? std::round(normal(random)) : normal(random);
    std::vector<int32_t> ids(random() % 30);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % (logits.size() + 3));
    const size_t output_begin = ids.empty() ? 0 : random() % ids.size();
    SamplingOptions options;
    options.temperature = one_of({0.3f, 1, 2.5f});
    options.top_k = static_cast<int32_t>(one_of({0, 1, 5, 50}));
    options.top_p = one_of({1, 0.95f, 0.5f, 0.05f});
    options.min_p = one_of({0, 0, 0.05f});
    options.repetition_penalty = one_of({1, 1, 1.3f, 0.5f});
    options.presence_penalty = one_of({0, 0.7f, -0.5f});
    options.frequency_penalty = one_of({0, 0.25f});
    options.seed = random();
    const std::vector<double> p = ReferenceDistribution(logits, options, ids, output_begin);
    const int32_t expected = ReferenceDraw(p, SamplingUniform(options.seed, run));
    const int32_t drawn = Sample(logits, options, run, ids, output_begin);
    if (drawn == expected) continue;
    // Rounding may move a border by one candidate: the draw must still be next to the reference's.
    const double u = SamplingUniform(options.seed, run);
    const double near = std::accumulate(p.begin(), p.begin() + std::max(drawn, 0), 0.0);
    EXPECT_NEAR(near, u, 1e-5 + p[std::max(drawn, 0)]) << "run " << run;
    EXPECT_GT(p[std::max(drawn, 0)], 0) << "run " << run;
  }
}

TEST_F(Sampler, DrawsHaveTheFrequenciesOfTheDistribution) {
  const std::vector<float> logits = {2, 1, 0.5f, 0, -1, -1, -3, 1.9f};
  for (const auto& [top_k, top_p, min_p] :
       std::vector<std::tuple<int, float, float>>{{0, 1, 0}, {4, 1, 0}, {0, 0.8f, 0}, {0, 1, 0.2f}, {6, 0.9f, 0.1f}}) {
    SamplingOptions options;
    options.temperature = 0.8f;
    options.top_k = top_k;
    options.top_p = top_p;
    options.min_p = min_p;
    options.seed = 5;
    const std::vector<double> p = ReferenceDistribution(logits, options, {}, 0);
    std::vector<double> seen(logits.size());
    const int draws = TestDeviceIsSlow() ? 1000 : 20000;
    std::vector<Draw> step;
    for (int i = 0; i < draws; ++i) step.push_back({logits, options, i, {}});
    for (const absl::StatusOr<Sampled>& sampled : Step(step)) seen[sampled->id] += 1.0 / draws;
    for (size_t v = 0; v < p.size(); ++v) {
      EXPECT_NEAR(seen[v], p[v], 4 * std::sqrt(p[v] * (1 - p[v]) / draws)) << v;  // four sigma; exact where p is 0
    }
  }
}

TEST_F(Sampler, LogprobsAreThoseBeforePenaltiesAndTemperature) {
  const std::vector<float> logits = {1, 4, 2, 4, 3};
  double sum = 0;
  for (const float x : logits) sum += std::exp(x);
  SamplingOptions options;
  options.logprobs = 2;
  options.presence_penalty = 100;
  options.temperature = 0;
  const absl::StatusOr<Sampled> sampled = SampleToken(logits, options, CountPenalties(options, {1, 3, 4}, 0), 3);
  ASSERT_TRUE(sampled.ok());
  EXPECT_EQ(sampled->id, 2);
  ASSERT_EQ(sampled->logprobs.size(), 3u);
  const std::vector<int32_t> expected = {2, 1, 3};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(sampled->logprobs[i].id, expected[i]);
    EXPECT_NEAR(sampled->logprobs[i].logprob, logits[expected[i]] - std::log(sum), 1e-5);
  }
  options.presence_penalty = 0;
  options.logprobs = 0;
  EXPECT_EQ(SampleToken(logits, options, {}, 3)->logprobs.size(), 1u);
  options.logprobs = 20;
  const absl::StatusOr<Sampled> all = SampleToken(logits, options, {}, 3);
  std::vector<int32_t> order;
  for (const TokenLogprobPair& pair : all->logprobs) order.push_back(pair.id);
  EXPECT_EQ(order, (std::vector<int32_t>{1, 3, 4, 2, 0}));
  options.logprobs = -1;
  EXPECT_TRUE(SampleToken(logits, options, {}, 3)->logprobs.empty());
}

TEST_F(Sampler, AFlatVocabularyUnderTopPKeepsTheSmallestIds) {
  SamplingOptions options;
  options.temperature = 1;
  options.top_p = 0.25f;
  const std::vector<float> flat(49152, 0.5f);
  for (int i = 0; i < (TestDeviceIsSlow() ? 3 : 50); ++i) EXPECT_LT(Sample(flat, options, i), 49152 / 4);
}

}  // namespace
}  // namespace runahead
