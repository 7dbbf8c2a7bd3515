// Several answers to one prompt: what each gives, who computes the prompt, and how they end together.
#include "server/router/answer_group.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "server/base/answer_seed.h"
#include "server/rpc/status.h"
#include "tests/server/router/faults_fixture.h"
#include "tests/testing/await.h"
#include "tests/testing/fake_clock.h"

namespace runahead {
namespace {

using testing::Call;
using ::testing::Each;
using testing::FakeBehaviour;
using testing::FakeWorker;
using testing::Got;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr int kPrompt = 64, kTokens = 5;
constexpr char kWaitForSlots[] = "runahead_queue_requests{cause=\"slot\"}";

class AnswerGroupTest : public testing::FaultsFixture {
 protected:
  // Decode workers that keep prompts. `slots`: sequences that each steps together; 0: it does not say.
  void StartKeeping(testing::RouterSetup setup = {}, int slots = 0, int window = 0) {
    setup.able = [slots, window](v1::Capabilities& able) {
      able.set_keeps_beginnings(true);
      able.set_window_layers(window > 0 ? 1 : 0);
      able.set_window(window);
      if (slots > 0) able.set_max_batch(slots);
    };
    Start(setup);
    AwaitReady(setup.prefill, setup.decode);
  }
  v1::GenerateRequest Several(int answers, int tokens = kTokens, int prompt = kPrompt) {
    v1::GenerateRequest request = Ids(prompt, tokens);
    request.set_n(answers);
    request.mutable_sampling()->set_seed(7);
    return request;
  }
  void HoldDecode(int64_t tokens) {
    for (auto& worker : decode_) worker->Change([tokens](FakeBehaviour& b) { b.decode_until = tokens; });
  }
  void LetDecode() { HoldDecode(1 << 30); }
  // Of each answer what came of it, as if it were alone.
  static std::map<int, Got> ByAnswer(const Got& got) {
    std::map<int, Got> answers;
    for (const v1::GenerateResponse& response : got.responses) {
      const int answer = response.has_started()  ? response.started().answer()
                         : response.has_tokens() ? response.tokens().answer()
                                                 : response.finished().answer();
      answers[answer].responses.push_back(response);
    }
    return answers;
  }
  // So many answers, each from its `started` to its `finished`, with all tokens that the fakes give.
  static void ExpectWhole(const Got& got, int answers, int tokens = kTokens) {
    ASSERT_TRUE(got.status.ok()) << got.status;
    const std::map<int, Got> each = ByAnswer(got);
    ASSERT_THAT(each, SizeIs(answers));
    for (const auto& [number, answer] : each) {
      SCOPED_TRACE(number);
      ASSERT_TRUE(answer.responses.front().has_started());
      EXPECT_EQ(answer.started().seed(), SeedOfAnswer(7, number));
      EXPECT_EQ(answer.started().request_id(), got.started().request_id());
      EXPECT_EQ(absl::c_count_if(answer.responses, [](const auto& r) { return r.has_started(); }), 1);
      EXPECT_EQ(absl::c_count_if(answer.responses, [](const auto& r) { return r.has_finished(); }), 1);
      ASSERT_TRUE(answer.responses.back().has_finished());
      int next = 0;
      for (const v1::GenerateResponse& response : answer.responses) {
        if (!response.has_tokens()) continue;
        EXPECT_EQ(response.tokens().index(), next);
        for (const int32_t id : response.tokens().ids()) EXPECT_EQ(id, 100 + next++);
      }
      EXPECT_EQ(next, tokens);
      EXPECT_EQ(answer.finished().usage().completion_tokens(), tokens);
    }
  }
  // How often the prompt was computed: the tail of each chain is told so.
  int Chains(int at_least) {
    int chains = 0;
    EXPECT_TRUE(testing::Await(absl::StrCat(at_least, " chains have begun"), [&] {
      chains = 0;
      for (auto& worker : prefill_) {
        for (const v1::StartJob& start : worker->AwaitStarts(0)) chains += start.has_sampling();
      }
      return chains >= at_least;
    }));
    return chains;
  }
  double Ended(const std::string& code) {
    return Metric(absl::StrCat("runahead_requests_total{code=\"", code, "\",model=\"tiny\"}"));
  }
};

TEST_F(AnswerGroupTest, EachIsWholeAndThePromptIsComputedOnce) {
  StartKeeping();
  const Got got = Generate(Several(4));
  ExpectWhole(got, 4);
  EXPECT_EQ(Chains(1), 1);
  for (const auto& [number, answer] : ByAnswer(got)) {
    EXPECT_EQ(answer.started().plan().schedule(), number == 0 ? "kvr" : "continuation");
    EXPECT_EQ(answer.finished().usage().cached_prompt_tokens(), number == 0 ? 0 : kPrompt - 1);
    EXPECT_EQ(answer.finished().usage().prompt_tokens(), kPrompt);
  }
  decode_[0]->AwaitLeases(0);
}

TEST_F(AnswerGroupTest, EachIsDrawnByItsOwnSeed) {
  StartKeeping();
  ASSERT_TRUE(Generate(Several(3)).status.ok());
  std::vector<uint64_t> seeds;
  for (const v1::DecodeRequest& request : decode_[0]->decode_requests()) seeds.push_back(request.sampling().seed());
  EXPECT_THAT(seeds, ::testing::UnorderedElementsAre(7u, SeedOfAnswer(7, 1), SeedOfAnswer(7, 2)));
}

TEST_F(AnswerGroupTest, WithoutASeedOneIsDrawnAndStartedSaysAllOfThem) {
  StartKeeping();
  v1::GenerateRequest request = Several(3);
  request.clear_sampling();
  const std::map<int, Got> answers = ByAnswer(Generate(request));
  ASSERT_THAT(answers, SizeIs(3));
  const uint64_t seed = answers.at(0).started().seed();
  for (const auto& [number, answer] : answers) EXPECT_EQ(answer.started().seed(), SeedOfAnswer(seed, number));
}

TEST_F(AnswerGroupTest, TheMetricsCountOneRequestAndAllTokens) {
  StartKeeping();
  ASSERT_TRUE(Generate(Several(4)).status.ok());
  EXPECT_EQ(Ended("OK"), 1);
  EXPECT_EQ(Metric("runahead_prompt_tokens_total"), kPrompt);
  EXPECT_EQ(Metric("runahead_generated_tokens_total"), 4 * kTokens);
  EXPECT_EQ(Metric("runahead_known_prompt_tokens_total{rest=\"decode\"}"), 0) << "nothing of another request";
  double first_tokens = 0;
  for (const char* width : {"0", "1", "2"}) {
    const std::string name =
        absl::StrCat("runahead_time_to_first_token_seconds_count{chain_width=\"", width, "\",model=\"tiny\"");
    if (absl::StrContains(metric_registry_.Serialize(), name)) {
      first_tokens += Metric(absl::StrCat(name, ",prompt_class=\"le256\"}"));
    }
  }
  EXPECT_EQ(first_tokens, 1);
}

TEST_F(AnswerGroupTest, TheLogHasOneLineWithAllTokens) {
  StartKeeping();
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(Generate(Several(4)).status.ok());
  server_.reset();
  service_.reset();  // whose last line is written
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr(absl::StrCat(" answers=4 prompt_tokens=", kPrompt, " generated_tokens=", 4 * kTokens)));
  EXPECT_EQ(log.find("request_id="), log.rfind("request_id=")) << log;
}

TEST_F(AnswerGroupTest, TheTraceIsThatOfTheFirst) {
  StartKeeping({.trace = "all"});
  const Got got = Generate(Several(3));
  ASSERT_TRUE(got.status.ok()) << got.status;
  grpc::ClientContext context;
  v1::GetTraceRequest request;
  request.set_request_id(got.started().request_id());
  v1::Trace trace;
  const grpc::Status status = stub_->GetTrace(&context, request, &trace);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const auto& spans = trace.processes(0).spans();
  EXPECT_EQ(absl::c_count_if(spans, [](const v1::TraceSpan& span) { return span.name() == "request"; }), 1);
  const std::vector<v1::DecodeRequest> decoded = decode_[0]->decode_requests();
  EXPECT_EQ(absl::c_count_if(decoded, [](const auto& request) { return !request.traceparent().empty(); }), 1);
}

// A decode worker that stands still before its first token has not said that it has the prompt.
TEST_F(AnswerGroupTest, TheOthersBeginOnceThePromptIsThere) {
  StartKeeping();
  HoldDecode(0);
  Call call(*stub_, Several(3));
  decode_[0]->AwaitDecodes(1);
  EXPECT_THAT(decode_[0]->reserve_requests(), SizeIs(1));
  LetDecode();
  const Got got = call.Finish();
  ExpectWhole(got, 3);
  const auto later = absl::c_find_if(
      got.responses, [](const auto& response) { return response.has_started() && response.started().answer() > 0; });
  int before = 0;
  for (auto at = got.responses.begin(); at != later; ++at) before += at->tokens().ids_size();
  EXPECT_GE(before, 2) << "the second token says that decode has it";
}

TEST_F(AnswerGroupTest, WhereNoWorkerKeepsItEachComputesThePrompt) {
  Start();
  const Got got = Generate(Several(3));
  ExpectWhole(got, 3);
  EXPECT_GE(Chains(3), 3);
  for (const auto& [number, answer] : ByAnswer(got)) EXPECT_EQ(answer.finished().usage().cached_prompt_tokens(), 0);
}

// Rows that the last token sees, and what follows does not, were not handed off.
TEST_F(AnswerGroupTest, WhereThereAreWindowsNobodyWaitsForThePrompt) {
  StartKeeping({}, /*slots=*/0, /*window=*/40);
  HoldDecode(0);
  Call call(*stub_, Several(3));
  decode_[0]->AwaitDecodes(3);
  LetDecode();
  ExpectWhole(call.Finish(), 3);
  EXPECT_GE(Chains(3), 3);
}

TEST_F(AnswerGroupTest, WithoutCacheNothingIsLeftAndEachComputesThePrompt) {
  StartKeeping();
  v1::GenerateRequest request = Several(3);
  request.set_no_cache(true);
  ExpectWhole(Generate(request), 3);
  EXPECT_GE(Chains(3), 3);
  for (const v1::ReserveRequest& reserved : decode_[0]->reserve_requests()) {
    EXPECT_TRUE(reserved.not_kept());
    EXPECT_FALSE(reserved.has_least_known_tokens());
  }
  EXPECT_EQ(Metric("runahead_known_index_tokens"), 0);
}

TEST_F(AnswerGroupTest, AnswersOfOneTokenWithoutMemoryForThePromptComputeItEach) {
  StartKeeping();
  decode_[0]->Change([](FakeBehaviour& b) { b.reserve = false; });
  ExpectWhole(Generate(Several(3, /*tokens=*/1)), 3, 1);
  EXPECT_GE(Chains(3), 3);
  EXPECT_TRUE(decode_[0]->decode_requests().empty());
}

TEST_F(AnswerGroupTest, AShortPromptIsComputedByEach) {
  StartKeeping();
  ExpectWhole(Generate(Several(3, kTokens, /*prompt=*/8)), 3);
  EXPECT_GE(Chains(3), 3);
}

// The second one goes first then.
TEST_F(AnswerGroupTest, WhereTheFirstTokenIsTheEndAndThePromptIsNotKeptTheNextOneComputesIt) {
  StartKeeping();
  decode_[0]->Change([](FakeBehaviour& b) {
    b.generate_end = grpc::Status(grpc::StatusCode::UNAVAILABLE, "it is about to stop");
  });
  v1::GenerateRequest request = Several(3);
  request.mutable_stop()->add_stop_ids(100);
  ExpectWhole(Generate(request), 3, 1);
  EXPECT_GE(Chains(3), 3);
  decode_[0]->AwaitLeases(0);
}

TEST_F(AnswerGroupTest, EachEndsAtItsOwnStopString) {
  StartKeeping();
  const std::vector<int32_t> text =
      *tokenizer_->Encode("one two three four", {.parse_special = false, .add_bos = false});
  for (auto* workers : {&prefill_, &decode_}) {
    for (auto& worker : *workers) {
      worker->Change(
          [&text](FakeBehaviour& b) { b.token = [text](int64_t index) { return text[index % text.size()]; }; });
    }
  }
  v1::GenerateRequest request = Several(3, 1000);
  request.mutable_stop()->add_stop("wo thr");
  const Got got = Generate(request);
  ASSERT_TRUE(got.status.ok()) << got.status;
  const std::map<int, Got> answers = ByAnswer(got);
  ASSERT_THAT(answers, SizeIs(3));
  for (const auto& [number, answer] : answers) {
    EXPECT_EQ(answer.text(), "one t");
    EXPECT_EQ(answer.finished().reason(), v1::FINISH_REASON_STOP);
  }
}

TEST_F(AnswerGroupTest, OneCancelEndsAll) {
  StartKeeping();
  HoldDecode(1);
  Call call(*stub_, Several(3, 50));
  decode_[0]->AwaitDecodes(3);
  call.Cancel();
  EXPECT_EQ(call.Finish().status.code(), absl::StatusCode::kCancelled);
  decode_[0]->AwaitLeases(0);
  EXPECT_TRUE(MetricBecomes("runahead_requests_total{code=\"CANCELLED\",model=\"tiny\"}", 1));
}

TEST_F(AnswerGroupTest, OneTimeoutEndsAll) {
  StartKeeping();
  HoldDecode(1);
  v1::GenerateRequest request = Several(3, 50);
  request.set_timeout_s(0.5);
  const Got got = Generate(request);
  EXPECT_EQ(got.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(got.status.message()), StartsWith("timeout_s: "));
  decode_[0]->AwaitLeases(0);
}

TEST_F(AnswerGroupTest, TheErrorOfOneEndsAllAndSaysWhich) {
  StartKeeping();
  HoldDecode(0);
  Call call(*stub_, Several(3, 50));
  decode_[0]->AwaitDecodes(1);
  decode_[0]->Change([](FakeBehaviour& b) {
    b.reserve_error = grpc::Status(grpc::StatusCode::OUT_OF_RANGE, "larger than any store");
    b.decode_until = 1;
  });
  const Got got = call.Finish();
  EXPECT_EQ(got.status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(got.status.message()), StartsWith("answer 1: "));
  EXPECT_THAT(std::string(got.status.message()), HasSubstr("larger than any store"));
  decode_[0]->AwaitLeases(0);
}

TEST_F(AnswerGroupTest, TheFirstGoesOnElsewhereAndTheOthersBeginThere) {
  StartKeeping({.decode = 2});
  HoldDecode(0);
  Call call(*stub_, Several(3));
  ASSERT_TRUE(testing::Await("one of two decode workers is asked to decode", [&] {
    return decode_[0]->decode_requests().size() + decode_[1]->decode_requests().size() == 1;
  }));
  const size_t lost = decode_[0]->decode_requests().empty() ? 1 : 0;
  decode_[1 - lost]->Change([](FakeBehaviour& b) { b.decode_until = 1 << 30; });
  decode_[lost].reset();
  std::swap(decode_[0], decode_[1 - lost]);
  decode_.resize(1);
  const Got got = call.Finish();
  ExpectWhole(got, 3);
  const std::map<int, Got> answers = ByAnswer(got);
  EXPECT_GE(answers.at(0).finished().failovers(), 1);
  EXPECT_EQ(answers.at(1).finished().usage().cached_prompt_tokens(), kPrompt - 1);
}

TEST_F(AnswerGroupTest, SixtyFourGoThroughFewSlots) {
  StartKeeping({}, /*slots=*/3);
  const Got got = Generate(Several(64));
  ExpectWhole(got, 64);
  decode_[0]->AwaitLeases(0);
}

// What waits for a slot goes on from the prompt once it has one, and does not compute it again.
TEST_F(AnswerGroupTest, WhoWaitedForASlotBeginsWithThePromptToo) {
  StartKeeping({.prefill = 1}, /*slots=*/1);
  HoldDecode(1);
  Call call(*stub_, Several(2));
  ASSERT_TRUE(MetricBecomes(kWaitForSlots, 1));
  LetDecode();
  const Got got = call.Finish();
  ExpectWhole(got, 2);
  EXPECT_EQ(ByAnswer(got).at(1).started().plan().known_tokens(), kPrompt - 1);
  EXPECT_EQ(Chains(1), 1);
}

TEST_F(AnswerGroupTest, OthersHaveTheirTurnsBetweenItsAnswers) {
  StartKeeping({.prefill = 1}, /*slots=*/1);
  HoldDecode(1);
  v1::GenerateRequest request = Several(3);
  request.set_request_id("several");
  Call call(*stub_, request);
  ASSERT_TRUE(MetricBecomes(kWaitForSlots, 1));
  v1::GenerateRequest single = Ids(5, kTokens);
  single.set_request_id("single");
  Call other(*stub_, single);
  ASSERT_TRUE(MetricBecomes(kWaitForSlots, 2)) << "one of several waits at a time";
  LetDecode();
  ExpectWhole(call.Finish(), 3);
  EXPECT_TRUE(other.Finish().status.ok());
  std::vector<std::string> order;
  for (const v1::DecodeRequest& decoded : decode_[0]->decode_requests()) order.push_back(decoded.request_id());
  EXPECT_THAT(order, ::testing::ElementsAre("several", "several", "single", "several"));
}

TEST_F(AnswerGroupTest, ACallThatWasAdmittedIsNotRefusedByAFullQueue) {
  StartKeeping({.prefill = 1, .queue_size = 0}, /*slots=*/1);
  HoldDecode(1);
  Call call(*stub_, Several(3));
  ASSERT_TRUE(MetricBecomes(kWaitForSlots, 1));
  EXPECT_EQ(Generate(Ids(5, kTokens)).status.code(), absl::StatusCode::kResourceExhausted);
  LetDecode();
  ExpectWhole(call.Finish(), 3);
}

// Nor where its second answer, which finds the prompt gone, is expected minutes behind its deadline: another prompt is
// computed before it.
TEST_F(AnswerGroupTest, ACallThatWasAdmittedIsNotRefusedForItsDeadline) {
  StartKeeping({.prefill = 1});
  prefill_[0]->Change([](FakeBehaviour& b) { b.prefill_takes = absl::Minutes(1); });
  decode_[0]->Change([](FakeBehaviour& b) { b.has_kept = false; });
  HoldDecode(0);
  v1::GenerateRequest request = Several(2), other = Ids(3000, kTokens);
  request.set_timeout_s(20);
  Call call(*stub_, request);
  decode_[0]->AwaitDecodes(1);
  HoldPrefill(false, false);
  other.mutable_token_ids()->set_ids(0, 1);
  queue_->PrefillTook(other.token_ids().ids_size(), /*width=*/1, absl::Minutes(2));
  Call before(*stub_, other);
  prefill_[0]->AwaitStarts(2);
  LetDecode();
  prefill_[0]->AwaitStarts(3);
  prefill_[0]->LetJobsEnd();
  ExpectWhole(call.Finish(), 2);
  EXPECT_TRUE(before.Finish().status.ok());
}

// What the first one left is gone. They have waited for that, and wait for no other's.
TEST_F(AnswerGroupTest, LaterAnswersDoNotWaitForWhatOtherLaterOnesCompute) {
  StartKeeping();
  decode_[0]->Change([](FakeBehaviour& b) { b.has_kept = false; });
  HoldDecode(0);
  Call call(*stub_, Several(3), testing::kInVain);
  decode_[0]->AwaitDecodes(1);
  HoldPrefill(false, false);
  LetDecode();
  Chains(3);
  EXPECT_EQ(Metric("runahead_beginnings_awaited_total"), 0);
  for (auto& worker : prefill_) worker->LetJobsEnd();
  ExpectWhole(call.Finish(), 3);
}

TEST_F(AnswerGroupTest, OneIsAnAnswerAsEver) {
  StartKeeping();
  const Got got = Generate(Several(1));
  ExpectWhole(got, 1);
  EXPECT_THAT(decode_[0]->reserve_requests(), SizeIs(1));
}

class AnswerPaceTest : public AnswerGroupTest {
 protected:
  testing::FakeClock clock_;
};

// An hour, while the first answer's prompt took a second.
TEST_F(AnswerPaceTest, WhatALaterAnswersTokenTakesSaysNothingOfRests) {
  StartKeeping({.prefill = 1, .stall_timeout = absl::Hours(24), .clock = &clock_});
  prefill_[0]->Change([](FakeBehaviour& b) { b.prefill_takes = absl::Seconds(1); });
  HoldDecode(0);
  Call call(*stub_, Several(2, /*tokens=*/2), testing::kInVain);
  decode_[0]->AwaitDecodes(1);
  decode_[0]->Change([](FakeBehaviour& b) {
    b.decode_until = 1 << 30;
    b.answers_leases = false;
  });
  decode_[0]->AwaitUnanswered(1);  // the second one has asked
  decode_[0]->Change([](FakeBehaviour& b) {
    b.decode_until = -1;
    b.answers_leases = true;
  });
  decode_[0]->AwaitDecodes(2);
  clock_.Advance(absl::Hours(1));
  LetDecode();
  ExpectWhole(call.Finish(), 2, 2);
  const Got next = Generate(Ids(2 * kPrompt, kTokens));
  ASSERT_TRUE(next.status.ok()) << next.status;
  EXPECT_EQ(next.started().plan().schedule(), "continuation") << "half of it is known";
}

}  // namespace
}  // namespace runahead
