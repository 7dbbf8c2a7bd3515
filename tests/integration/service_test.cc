// The whole service over real processes, as clients see it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <future>
#include <limits>
#include <thread>

#include "tests/integration/local_cluster.h"
#include "tests/testing/exactness.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

// One cluster for all tests of the file: starting processes is what takes long.
class ServiceTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_path_ = new std::string(WriteSynthetic(SmallModel(), "service"));
    cluster_ = new LocalCluster(*model_path_, {"--prefill", "3", "--decode", "1", "--dtype", "f32", "--experiments"});
  }
  static void TearDownTestSuite() {
    delete cluster_;
    cluster_ = nullptr;
    delete model_path_;
  }
  void TearDown() override { cluster_->ExpectAllFree(); }

  static std::string* model_path_;
  static LocalCluster* cluster_;
};
std::string* ServiceTest::model_path_ = nullptr;
LocalCluster* ServiceTest::cluster_ = nullptr;

// Greedy tokens of the plain forward pass; margins at each step.
std::vector<Top> Plain(const LoadedModel& loaded, const std::vector<int32_t>& ids, int tokens) {
  SequenceRunner runner(loaded, static_cast<int64_t>(ids.size()) + tokens);
  std::vector<Top> result;
  std::vector<float> logits = runner.Append(ids, false, false)[0];
  for (int i = 0; i < tokens; ++i) {
    result.push_back(TopOf(logits));
    logits = runner.Append({result.back().id}, true, true)[0];
  }
  return result;
}

// The rule of f32, up to the first step that rightly differs: from there on it is another text.
void ExpectTokens(const std::vector<int32_t>& actual, const std::vector<Top>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  TokenRule rule(DType::kF32);
  for (size_t step = 0; step < expected.size() && rule.different() == 0; ++step) rule.Add(actual[step], expected[step]);
}

TEST_F(ServiceTest, AnyChainGivesThePlainPassTokens) {
  const LoadedModel loaded = LoadForTest(*model_path_, DType::kF32, 1);
  const std::vector<int32_t> ids = SyntheticIds(500, 1);
  const auto expected = Plain(loaded, ids, 24);
  for (const std::vector<int>& parts :
       std::vector<std::vector<int>>{{500}, {250, 250}, {1, 499}, {499, 1}, {200, 170, 130}, {1, 498, 1}}) {
    SCOPED_TRACE(::testing::PrintToString(parts));
    v1::GenerateRequest request = Uncached(RequestOf(ids, 24));
    request.mutable_experiment()->mutable_parts()->Assign(parts.begin(), parts.end());
    const Answer answer = cluster_->Generate(request);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_THAT(answer.started.plan().parts(), ::testing::ElementsAreArray(parts));
    EXPECT_EQ(answer.finished.usage().prompt_tokens(), 500);
    EXPECT_EQ(answer.finished.usage().completion_tokens(), 24);
    EXPECT_EQ(answer.finished.reason(), v1::FINISH_REASON_LENGTH);
    ExpectTokens(answer.ids, expected);
    double stages = 0;
    for (const auto& [name, seconds] : answer.finished.timing().stages()) stages += seconds;
    EXPECT_NEAR(stages, answer.finished.timing().ttft_s(), 1e-6);
  }
}

TEST_F(ServiceTest, TheBaselinesGiveThePlainPassTokens) {
  const LoadedModel loaded = LoadForTest(*model_path_, DType::kF32, 1);
  const std::vector<int32_t> ids = SyntheticIds(500, 2);
  const auto expected = Plain(loaded, ids, 24);
  for (const auto& [schedule, name] : std::vector<std::pair<v1::Schedule, std::string>>{
           {v1::SCHEDULE_SINGLE, "single"}, {v1::SCHEDULE_TSP, "tsp"}, {v1::SCHEDULE_TSP_CAUSAL, "tsp-causal"}}) {
    SCOPED_TRACE(name);
    const auto sent_up = [] {
      return cluster_->Sum("prefill-1", "runahead_link_bytes_total{direction=\"send\",peer=\"prefill-0\"");
    };
    const double before = sent_up();
    v1::GenerateRequest request = Uncached(RequestOf(ids, 24));
    request.mutable_experiment()->set_schedule(schedule);
    const Answer answer = cluster_->Generate(request);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.started.plan().schedule(), name);
    const bool single = schedule == v1::SCHEDULE_SINGLE;
    EXPECT_EQ(answer.started.plan().workers_size(), single ? 1 : 3);
    ExpectTokens(answer.ids, expected);
    // Only an all-gather sends towards the head: two thirds of the prompt, K and V of four layers.
    const double tokens = single ? 0 : 333;
    const double bytes = tokens * 4 * static_cast<double>(loaded.model->kv_row_bytes());
    EXPECT_TRUE(Eventually([&] { return sent_up() - before == bytes; })) << sent_up() - before;
  }
}

TEST_F(ServiceTest, WhatThePredecessorComputesIsNoTransfer) {
  const auto moved = [](const char* name) { return cluster_->Sum("prefill-1", name); };
  const auto frames = [&] { return moved("runahead_link_seconds_sum{direction=\"receive\",peer=\"prefill-0\""); };
  const auto transfer = [&] { return moved("runahead_prefill_transfer_seconds_sum{position=\"1\"}"); };
  const auto hidden = [&] { return moved("runahead_prefill_transfer_hidden_seconds_sum{position=\"1\"}"); };
  const auto waited = [&] { return moved("runahead_prefill_wait_seconds_sum{position=\"1\"}"); };
  const auto jobs = [&] { return moved("runahead_prefill_wait_seconds_count{position=\"1\"}"); };
  const double frames_before = frames(), transfer_before = transfer(), hidden_before = hidden();
  const double waited_before = waited(), jobs_before = jobs();
  // The head has nearly all of the work, so that the tail waits for it in every layer.
  v1::GenerateRequest request = Uncached(RequestOf(SyntheticIds(4000, 5), 1));
  for (const int part : {3999, 1}) request.mutable_experiment()->add_parts(part);
  const Answer answer = cluster_->Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_TRUE(Eventually([&] { return jobs() == jobs_before + 1; }));
  const double waited_s = waited() - waited_before, frames_s = frames() - frames_before;
  const double transfer_s = transfer() - transfer_before, hidden_s = hidden() - hidden_before;
  EXPECT_LT(frames_s, waited_s);  // a frame that were counted from when it is expected would take all of the wait
  EXPECT_GT(transfer_s, 0);
  EXPECT_LE(transfer_s, frames_s + 1e-9);  // one piece a layer: none beside another
  EXPECT_LT(hidden_s, transfer_s);
  EXPECT_LE(transfer_s - hidden_s, waited_s + 1e-9);
}

TEST_F(ServiceTest, AShortPromptRunsBetweenTheLayersOfALongOne) {
  const LoadedModel loaded = LoadForTest(*model_path_, DType::kF32, 1);
  const std::vector<int32_t> ids = SyntheticIds(30, 3), long_ids = SyntheticIds(4000, 4);
  const auto expected = Plain(loaded, ids, 8);
  const auto interleaved = [] {
    double sum = 0;
    for (const char* worker : {"prefill-0", "prefill-1", "prefill-2"}) {
      sum += cluster_->Metric(worker, "runahead_prefill_interleaved_total");
    }
    return sum;
  };
  const double before = interleaved();
  // Mostly at once; the long prompt may be over before the short one comes.
  EXPECT_TRUE(Eventually([&] {
    auto long_one =
        std::async(std::launch::async, [&] { return cluster_->Generate(Uncached(RequestOf(long_ids, 1))); });
    EXPECT_TRUE(Eventually([] { return cluster_->Metric("router", "runahead_requests_in_flight") > 0; }));
    const Answer answer = cluster_->Generate(Uncached(RequestOf(ids, 8)));
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    ExpectTokens(answer.ids, expected);
    EXPECT_TRUE(long_one.get().status.ok());
    return interleaved() > before;
  }));
}

TEST_F(ServiceTest, SixteenAtOnceGiveWhatEachGivesAlone) {
  std::vector<v1::GenerateRequest> requests;
  std::vector<std::vector<int32_t>> alone;
  for (int i = 0; i < 16; ++i) {
    requests.push_back(Uncached(RequestOf(SyntheticIds(5 + 37 * i, i), 400 + i)));
    // A long prompt that differs in one reduction may differ in a token of small margin: one width for all.
    requests.back().mutable_experiment()->set_width(1);
    const Answer answer = cluster_->Generate(requests.back());
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    alone.push_back(answer.ids);
  }
  // Steps of more than eight. How soon after each other they begin is up to the machine: they may need another go.
  const auto crowded = [&] {
    const double steps = cluster_->Metric("decode-0", "runahead_decode_batch_size_count");
    return steps - cluster_->Metric("decode-0", "runahead_decode_batch_size_bucket{le=\"8\"}");
  };
  EXPECT_EQ(crowded(), 0) << "one at a time";
  for (int attempt = 0; attempt < 5 && crowded() == 0; ++attempt) {
    std::vector<Answer> together(16);
    std::vector<std::thread> clients;
    for (int i = 0; i < 16; ++i) clients.emplace_back([&, i] { together[i] = cluster_->Generate(requests[i]); });
    for (std::thread& client : clients) client.join();
    for (int i = 0; i < 16; ++i) {
      EXPECT_TRUE(together[i].status.ok()) << together[i].status.error_message();
      EXPECT_EQ(together[i].ids, alone[i]) << "request " << i;
    }
  }
  EXPECT_GT(crowded(), 0);
}

TEST_F(ServiceTest, SamplingIsRepeatableWithASeedAndTheSeedIsReturned) {
  v1::GenerateRequest request = Uncached(RequestOf(SyntheticIds(40, 3), 30));
  request.mutable_sampling()->set_temperature(1.0f);
  request.mutable_sampling()->set_logprobs(3);
  const Answer first = cluster_->Generate(request);
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  ASSERT_EQ(first.logprobs.size(), 30u);
  for (size_t i = 0; i < 30; ++i) EXPECT_EQ(first.logprobs[i].top(0).id(), first.ids[i]);
  request.mutable_sampling()->set_seed(first.started.seed());
  EXPECT_EQ(cluster_->Generate(request).ids, first.ids);
  request.mutable_sampling()->set_seed(first.started.seed() + 1);
  EXPECT_NE(cluster_->Generate(request).ids, first.ids);
}

TEST_F(ServiceTest, OneTokenTakesNoLease) {
  const Answer answer = cluster_->Generate(Uncached(RequestOf(SyntheticIds(100, 4), 1)));
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.ids.size(), 1u);
  EXPECT_EQ(answer.started.plan().decode_worker(), "");
}

// The client knows that it cancelled whatever the router does; the router's own count says that it noticed.
TEST_F(ServiceTest, AClientThatGoesAwayFreesEverything) {
  const double cancelled = cluster_->Ended("CANCELLED"), done = cluster_->Ended("OK");
  ASSERT_GE(cancelled, 0) << "the metric is there from the start";
  grpc::ClientContext context;
  const Answer answer =
      cluster_->Generate(Uncached(RequestOf(SyntheticIds(50, 5), 3000)), &context, [&](size_t tokens) {
        if (tokens >= 5) context.TryCancel();
      });
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return cluster_->Ended("CANCELLED") == cancelled + 1; }));
  EXPECT_EQ(cluster_->Ended("OK"), done);
}

TEST_F(ServiceTest, ADeadlineInMidAnswerIsTheRoutersToo) {
  ASSERT_GE(cluster_->Ended("DEADLINE_EXCEEDED"), 0);
  const auto ended = [] { return cluster_->Ended("DEADLINE_EXCEEDED") + cluster_->Ended("CANCELLED"); };
  // Long enough that tokens came, short enough that not all of them did.
  auto timeout = std::chrono::milliseconds(50);
  EXPECT_TRUE(Eventually([&] {
    const double expired = cluster_->Ended("DEADLINE_EXCEEDED"), before = ended();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    const Answer answer = cluster_->Generate(Uncached(RequestOf(SyntheticIds(50, 7), 4000)), &context);
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << answer.ids.size() << " tokens";
    EXPECT_TRUE(answer.ids.empty() || Eventually([&] { return ended() > before; }));
    cluster_->ExpectAllFree();
    if (answer.ids.empty()) timeout *= 2;
    // Where the router is late, it takes the client's cancel for one of another kind.
    return !answer.ids.empty() && cluster_->Ended("DEADLINE_EXCEEDED") > expired;
  }));
}

TEST_F(ServiceTest, TheFilesNameIsAModelNameToo) {
  for (const char* name : {"small", "SMALL", "service", "Service"}) {
    v1::GenerateRequest request = Uncached(RequestOf(SyntheticIds(10, 8), 2));
    request.set_model(name);
    const Answer answer = cluster_->Generate(request);
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  }
}

TEST_F(ServiceTest, ClientsThatGoAwayAtOnceLeaveNoLease) {
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([i] {
      for (int j = 0; j < 12; ++j) {
        grpc::ClientContext context;
        context.set_deadline(std::chrono::system_clock::now() + std::chrono::microseconds(300 * (i + j)));
        cluster_->Generate(Uncached(RequestOf(SyntheticIds(20, i), 50)), &context);
      }
    });
  }
  for (std::thread& client : clients) client.join();
}

TEST_F(ServiceTest, BadInputNamesTheFieldAndTheNextRequestWorks) {
  struct Case {
    std::string field;
    grpc::StatusCode code;
    std::function<void(v1::GenerateRequest&)> spoil;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto code = [](int value) { return static_cast<grpc::StatusCode>(value); };
  const grpc::StatusCode invalid = grpc::StatusCode::INVALID_ARGUMENT, range = grpc::StatusCode::OUT_OF_RANGE;
  const std::vector<Case> cases = {
      {"prompt", invalid, [](auto& r) { r.mutable_prompt(); }},
      {"token_ids", invalid, [](auto& r) { r.mutable_token_ids()->clear_ids(); }},
      {"prompt", range, [](auto& r) { r.mutable_token_ids()->mutable_ids()->Resize(4097, 5); }},
      {"max_tokens", range, [](auto& r) { r.mutable_stop()->set_max_tokens(4096); }},
      {"token_ids", code(0), [](auto& r) { r.mutable_token_ids()->add_ids(320); }},
      {"token_ids", code(0), [](auto& r) { r.mutable_token_ids()->add_ids(-1); }},
      {"max_tokens", invalid, [](auto& r) { r.mutable_stop()->set_max_tokens(0); }},
      {"temperature", invalid, [](auto& r) { r.mutable_sampling()->set_temperature(-0.1f); }},
      {"temperature", invalid, [&](auto& r) { r.mutable_sampling()->set_temperature(nan); }},
      {"top_p", invalid, [](auto& r) { r.mutable_sampling()->set_top_p(0); }},
      {"top_p", invalid, [](auto& r) { r.mutable_sampling()->set_top_p(1.01f); }},
      {"top_p", invalid, [&](auto& r) { r.mutable_sampling()->set_top_p(nan); }},
      {"model", grpc::StatusCode::NOT_FOUND, [](auto& r) { r.set_model("large"); }},
      {"stop", invalid,
       [](auto& r) {
         for (int i = 0; i < 17; ++i) r.mutable_stop()->add_stop("x");
       }},
      {"parts", invalid, [](auto& r) { r.mutable_experiment()->add_parts(9); }},
      {"width", invalid, [](auto& r) { r.mutable_experiment()->set_width(11); }},
  };
  for (const Case& bad : cases) {
    SCOPED_TRACE(bad.field);
    v1::GenerateRequest request = Uncached(RequestOf(SyntheticIds(10, 6), 4));
    bad.spoil(request);
    const Answer answer = cluster_->Generate(request);
    EXPECT_THAT(answer.status.error_message(), HasSubstr(bad.field));
    // A token id out of range may rightly be called either.
    const bool either = bad.code == grpc::StatusCode::OK &&
                        (answer.status.error_code() == invalid || answer.status.error_code() == range);
    EXPECT_TRUE(either || answer.status.error_code() == bad.code) << answer.status.error_code();
    EXPECT_TRUE(answer.ids.empty());
  }
  EXPECT_TRUE(cluster_->Generate(Uncached(RequestOf(SyntheticIds(10, 6), 4))).status.ok());
}

}  // namespace
}  // namespace runahead
