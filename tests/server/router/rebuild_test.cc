// Answers that lose what they rest on after their first token: they go on elsewhere behind the tokens that the router
// has, and the client sees none twice and none missing.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "server/rpc/status.h"
#include "tests/server/router/faults_fixture.h"
#include "tests/testing/await.h"
#include "tests/testing/synthetic_gguf.h"

namespace runahead {
namespace {

using testing::Call;
using testing::FakeBehaviour;
using testing::FakeWorker;
using testing::Got;
using ::testing::HasSubstr;

class RebuildTest : public testing::FaultsFixture {
 protected:
  static std::vector<int32_t> Counting(int32_t from, int32_t end) {
    std::vector<int32_t> ids;
    for (int32_t id = from; id < end; ++id) ids.push_back(id);
    return ids;
  }
  // Decode workers whose streams stop behind so many tokens.
  void HoldDecode(int64_t tokens) {
    for (auto& worker : decode_) worker->Change([tokens](FakeBehaviour& b) { b.decode_until = tokens; });
  }
  void AwaitDecodeRequest() {
    EXPECT_TRUE(testing::Await("one of two decode workers is asked to decode", [&] {
      return !decode_[0]->decode_requests().empty() || !decode_[1]->decode_requests().empty();
    }));
  }
  static void ReadTokens(Call& call, int count) {
    for (int tokens = 0; tokens < count;) {
      const auto response = call.Read();
      ASSERT_TRUE(response.has_value());
      tokens += response->tokens().ids_size();
    }
  }
  // Which of two decode workers has the only sequence.
  size_t Decoding() const { return decode_[0]->decode_requests().empty() ? 1 : 0; }
  // Kills it, once the other one's streams go on to their end.
  void KillDecoding() {
    const size_t one = Decoding();
    decode_[1 - one]->Change([](FakeBehaviour& b) { b.decode_until = 1 << 30; });
    decode_[one].reset();
    std::swap(decode_[0], decode_[1 - one]);
    decode_.resize(1);
  }
  // The same of one that drains. Nobody asks it for more: whether the router hears first that its call ended or that it
  // is lost, the next attempt is the last.
  void EndDecoding() {
    decode_[Decoding()]->SendDraining();
    EXPECT_TRUE(MetricBecomes("runahead_workers{role=\"decode\",state=\"draining\"}", 1));
    KillDecoding();
  }
  double Failovers(const char* cause) {
    return Metric(absl::StrCat("runahead_failovers_total{cause=\"", cause, "\",stage=\"decode\"}"));
  }
  // Workers give a text in which a character is of several tokens, and the request has a stop string in its middle.
  v1::GenerateRequest RequestForText() {
    const std::vector<int32_t> ids =
        *tokenizer_->Encode("caf\u00e9 \u2603 one two three", {.parse_special = false, .add_bos = false});
    for (auto* workers : {&prefill_, &decode_}) {
      for (auto& worker : *workers) {
        worker->Change(
            [&ids](FakeBehaviour& b) { b.token = [ids](int64_t index) { return ids[index % ids.size()]; }; });
      }
    }
    v1::GenerateRequest request = Ids(5, static_cast<int>(ids.size()));
    request.mutable_stop()->add_stop("wo thr");
    return request;
  }
  static int CountStarted(const Got& got) {
    return static_cast<int>(absl::c_count_if(got.responses, [](const auto& each) { return each.has_started(); }));
  }
};

TEST_F(RebuildTest, AnAnswerGoesOnWithAnotherWorkerBehindTheTokensThatItHas) {
  Start({.decode = 2});
  HoldDecode(3);
  v1::GenerateRequest request = Ids(5, 10);
  request.mutable_sampling()->set_temperature(1);  // a seed is drawn
  Call call(*stub_, request);
  ReadTokens(call, 4);
  const std::string dies = absl::StrCat("decode-", Decoding());
  KillDecoding();
  const Got got = call.Finish();
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.ids(), Counting(100, 110)) << "each once";
  EXPECT_EQ(CountStarted(got), 1);
  EXPECT_EQ(got.started().plan().decode_worker(), dies);
  EXPECT_NE(got.finished().plan().decode_worker(), dies);
  EXPECT_GE(got.finished().failovers(), 1) << "its call may end before its control stream: it is asked once more then";
  EXPECT_EQ(got.finished().usage().completion_tokens(), 10);
  EXPECT_EQ(got.finished().usage().prompt_tokens(), 5);
  int32_t index = 0;
  for (const v1::GenerateResponse& response : got.responses) {
    if (!response.has_tokens()) continue;
    EXPECT_EQ(response.tokens().index(), index);
    index += response.tokens().ids_size();
  }

  const v1::DecodeRequest asked = decode_[0]->decode_requests().at(0);
  EXPECT_EQ(asked.output_from(), 5);
  EXPECT_EQ(std::vector<int32_t>(asked.prompt_ids().begin() + 5, asked.prompt_ids().end()), Counting(100, 104));
  EXPECT_EQ(asked.max_tokens(), 10);
  EXPECT_EQ(asked.sampling().seed(), got.started().seed());
  decode_[0]->AwaitLeases(0);
  EXPECT_EQ(Failovers("worker_lost"), got.finished().failovers());
  EXPECT_EQ(Metric("runahead_generated_tokens_total"), 10);
  EXPECT_EQ(Metric("runahead_prompt_tokens_total"), 5);
  double stages = 0;
  for (const auto& [name, seconds] : got.finished().timing().stages()) stages += seconds;
  EXPECT_NEAR(stages, got.finished().timing().ttft_s(), 1e-6) << "the time to the first token is over";
}

// Whatever is drawn there for the first token: the client has another.
TEST_F(RebuildTest, WhatTheTailDrawsForTheSecondTimeIsIgnored) {
  Start({.decode = 2});
  HoldDecode(0);
  Call call(*stub_, Ids(5, 10));
  ReadTokens(call, 1);
  AwaitDecodeRequest();
  for (auto& worker : prefill_) {
    worker->Change([](FakeBehaviour& b) { b.token = [](int64_t index) { return static_cast<int32_t>(200 + index); }; });
  }
  KillDecoding();
  const Got got = call.Finish();
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.ids(), Counting(100, 110));
  EXPECT_EQ(decode_[0]->decode_requests().at(0).first_token(), 100);
}

TEST_F(RebuildTest, AHandOffThatFailsBehindTheFirstTokenIsDoneAnew) {
  Start();
  HoldPrefill(true, false);
  HoldDecode(0);  // the KV never becomes complete
  Call call(*stub_, Chain(10));
  ReadTokens(call, 1);
  decode_[0]->AwaitDecodes(1);
  const uint64_t job = Job();
  HoldPrefill(true, true);
  prefill_[0]->SendDone(job, absl::DataLossError("three times corrupt"));
  prefill_[0]->AwaitStarts(2);
  HoldDecode(1 << 30);
  const Got got = call.Finish();
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.ids(), Counting(100, 110));
  prefill_[1]->AwaitCancel(job);
  EXPECT_EQ(Failovers("worker_failed"), 1);
  ExpectAllFreeAndWorking();
}

TEST_F(RebuildTest, AWorkerThatFailedIsNotAskedAgainWhereThereIsAnother) {
  Start({.decode = 2});
  HoldDecode(3);
  Call call(*stub_, Ids(5, 10));
  ReadTokens(call, 4);
  const size_t fails = Decoding();
  // It is idle then, and the other one is not: it would be the first.
  decode_[1 - fails]->Change([](FakeBehaviour& b) { b.parked = 1; });
  decode_[fails]->Change(
      [](FakeBehaviour& b) { b.generate_end = grpc::Status(grpc::StatusCode::INTERNAL, "a decode step failed"); });
  decode_[1 - fails]->AwaitDecodes(1);
  HoldDecode(1 << 30);
  const Got got = call.Finish();
  EXPECT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.ids(), Counting(100, 110));
  EXPECT_EQ(Failovers("worker_failed"), 1);
  EXPECT_EQ(decode_[fails]->decode_requests().size(), 1u);
}

// Was: the failed one had it again at once, and its second failure was the answer's end.
TEST_F(RebuildTest, ItWaitsForAnotherThatIsFull) {
  Start({.decode = 2});
  HoldDecode(3);
  Call call(*stub_, Ids(5, 10));
  ReadTokens(call, 4);
  const size_t fails = Decoding();
  decode_[1 - fails]->Change([](FakeBehaviour& b) { b.reserve = false; });
  decode_[fails]->Change(
      [](FakeBehaviour& b) { b.generate_end = grpc::Status(grpc::StatusCode::INTERNAL, "a decode step failed"); });
  decode_[1 - fails]->AwaitReservations(2);
  decode_[1 - fails]->Change([](FakeBehaviour& b) { b = FakeBehaviour(); });
  const Got got = call.Finish();
  EXPECT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.ids(), Counting(100, 110));
  EXPECT_EQ(decode_[fails]->decode_requests().size(), 1u);
}

TEST_F(RebuildTest, TheOnlyDecodeWorkersReturnIsWaitedFor) {
  Start({.queue_size = 1});
  HoldDecode(3);
  Call call(*stub_, Ids(5, 10));
  ReadTokens(call, 4);
  // The queue is full: who is in the middle of an answer waits all the same.
  const std::string address = prefill_[0]->address();
  prefill_.clear();
  AwaitReady(0, 1);
  Call late(*stub_, Ids(5, 1));
  ASSERT_TRUE(MetricBecomes("runahead_queue_depth{priority=\"normal\"}", 1));
  Restart(decode_[0], Able("decode-0", v1::WORKER_ROLE_DECODE));
  ASSERT_TRUE(MetricBecomes("runahead_queue_depth{priority=\"normal\"}", 2));
  EXPECT_TRUE(absl::IsResourceExhausted(Generate(Ids(5, 1)).status)) << "who is new does not";
  prefill_.push_back(std::make_unique<FakeWorker>(Able("prefill-0", v1::WORKER_ROLE_PREFILL), address));
  const Got got = call.Finish();
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.ids(), Counting(100, 110));
  EXPECT_TRUE(late.Finish().status.ok());
}

TEST_F(RebuildTest, AnAnswerThatWasThereWhenTwoWorkersDiedEnds) {
  Start({.prefill = 1, .decode = 3});
  HoldDecode(3);
  Call call(*stub_, Ids(5, 10));
  ReadTokens(call, 4);
  HoldPrefill(false, false);
  for (int deaths = 1; deaths <= 2; ++deaths) {
    const auto has_it = [](const auto& worker) { return worker->leases() == 1; };
    const auto holds = absl::c_find_if(decode_, has_it);
    ASSERT_NE(holds, decode_.end());
    decode_.erase(holds);
    ASSERT_TRUE(MetricBecomes("runahead_workers{role=\"decode\",state=\"lost\"}", deaths));
    if (deaths == 1) prefill_[0]->AwaitStarts(2);
  }
  const Got got = call.Finish();
  EXPECT_EQ(got.status.code(), absl::StatusCode::kInternal) << got.status;
  EXPECT_THAT(got.status.message(), HasSubstr("died: it is not tried again"));
  EXPECT_EQ(got.ids(), Counting(100, 104));
  decode_[0]->AwaitLeases(0);
}

// Two workers that are replaced in order are no two deaths.
TEST_F(RebuildTest, AnAnswerOutlivesAnyNumberOfWorkersThatAreReplaced) {
  Start({.prefill = 1, .decode = 3});
  HoldDecode(3);
  Call call(*stub_, Ids(5, 10));
  ReadTokens(call, 4);
  for (size_t replaced = 1; replaced <= 2; ++replaced) {
    const auto holds = absl::c_find_if(decode_, [](const auto& worker) { return worker->leases() == 1; });
    ASSERT_NE(holds, decode_.end());
    (*holds)->SendDraining();
    ASSERT_TRUE(MetricBecomes("runahead_workers{role=\"decode\",state=\"draining\"}", 1));
    decode_.erase(holds);
    prefill_[0]->AwaitStarts(1 + replaced);
    ASSERT_TRUE(testing::Await("another worker has its lease", [&] {
      return absl::c_any_of(decode_, [](const auto& worker) { return worker->leases() == 1; });
    }));
  }
  HoldDecode(1 << 30);
  const Got got = call.Finish();
  EXPECT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.ids(), Counting(100, 110));
  EXPECT_EQ(got.finished().failovers(), 2);
}

// Was: INTERNAL without a word of that.
TEST_F(RebuildTest, SoItIsWhereWorkersFailedByTheirOwnFault) {
  Start();
  decode_[0]->Change([](FakeBehaviour& b) {
    b.decode_until = 3;
    b.generate_end = grpc::Status(grpc::StatusCode::INTERNAL, "a decode step failed");
  });
  const Got got = Generate(Ids(5, 10));
  EXPECT_EQ(got.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(got.status.message(), HasSubstr("a decode step failed"));
  EXPECT_THAT(got.status.message(), HasSubstr("to go on behind the 4 tokens that came, send the request again"));
  EXPECT_EQ(decode_[0]->decode_requests().size(), 1u + Failover::kMostFailures);
}

// Each time without a token more: so it is no worker's death that happened to it.
TEST_F(RebuildTest, RetriesEndAndTheClientIsToldHowToGoOn) {
  Start();
  decode_[0]->Change([](FakeBehaviour& b) {
    b.decode_until = 3;
    b.generate_end = grpc::Status(grpc::StatusCode::UNAVAILABLE, "about to stop");
  });
  v1::GenerateRequest request = Ids(5, 10);
  const Got got = Generate(request);
  EXPECT_EQ(got.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(got.status.message(), HasSubstr("to go on behind the 4 tokens that came, send the request again"));
  EXPECT_TRUE(RetryAfter(got.status).has_value());
  EXPECT_EQ(decode_[0]->decode_requests().size(), 1u + Failover::kMostRetries);
  decode_[0]->Change([](FakeBehaviour& b) { b = FakeBehaviour(); });
  request.mutable_output_ids()->Add(100);
  for (const int32_t id : Counting(101, 104)) request.add_output_ids(id);
  EXPECT_EQ(Generate(request).ids(), Counting(104, 110)) << "and so it does";
}

// Else a decode worker's death would be the end of all its streams but 32.
TEST_F(RebuildTest, OnlyARetryWithoutATokenInBetweenIsChargedToTheBudget) {
  Start({.decode = 2});
  while (parts_->retry_budget->Take()) {
  }
  HoldDecode(3);
  Call call(*stub_, Ids(5, 10));
  ReadTokens(call, 4);
  EndDecoding();
  EXPECT_TRUE(call.Finish().status.ok());
  decode_[0]->Change([](FakeBehaviour& b) {
    b.decode_until = 3;
    b.generate_end = grpc::Status(grpc::StatusCode::UNAVAILABLE, "about to stop");
  });
  const Got got = Generate(Ids(5, 10));
  EXPECT_EQ(got.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(got.status.message(), HasSubstr("retry budget"));
  EXPECT_EQ(got.ids(), Counting(100, 104));
}

// Was: the tail's token made the next try free, so that a hand-off that always fails tried every request again.
TEST_F(RebuildTest, TheTailsTokenDoesNotMakeUpForAHandOffThatFails) {
  Start();
  while (parts_->retry_budget->Take()) {
  }
  HoldPrefill(true, false);
  HoldDecode(0);
  Call call(*stub_, Chain(10));
  ReadTokens(call, 1);
  decode_[0]->AwaitDecodes(1);
  prefill_[0]->SendDone(Job(), absl::DataLossError("three times corrupt"));
  EXPECT_THAT(call.Finish().status.message(), HasSubstr("retry budget"));
}

TEST_F(RebuildTest, WhatIsTheRequestsOwnIsItsEnd) {
  Start();
  decode_[0]->Change([](FakeBehaviour& b) {
    b.decode_until = 3;
    b.generate_end = grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "prompt_ids: no such token");
  });
  EXPECT_EQ(Generate(Ids(5, 10)).status.code(), absl::StatusCode::kInternal);
  decode_[0]->Change([](FakeBehaviour& b) { b.generate_end.reset(); });
  Call call(*stub_, Ids(5, 10));
  ReadTokens(call, 4);
  call.Cancel();
  EXPECT_EQ(call.Finish().status.code(), absl::StatusCode::kCancelled);
  decode_[0]->AwaitLeases(0);
  EXPECT_EQ(decode_[0]->decode_requests().size(), 2u);
  for (const char* cause : {"worker_lost", "worker_failed", "path_broken"}) EXPECT_EQ(Failovers(cause), 0) << cause;
}

// Whatever happens to its decode worker behind that token.
TEST_F(RebuildTest, AnAnswerWhoseLastTokenCameIsWhole) {
  Start();
  decode_[0]->Change([](FakeBehaviour& b) {
    b.token = [](int64_t index) { return index == 3 ? kSyntheticImEnd : static_cast<int32_t>(100 + index); };
    b.generate_end = grpc::Status(grpc::StatusCode::UNAVAILABLE, "about to stop");
  });
  for (const auto& [max_tokens, reason] : {std::pair(10, v1::FINISH_REASON_STOP), {3, v1::FINISH_REASON_LENGTH}}) {
    const Got got = Generate(Ids(5, max_tokens));
    ASSERT_TRUE(got.status.ok()) << got.status;
    EXPECT_EQ(got.finished().reason(), reason);
    EXPECT_EQ(got.finished().failovers(), 0);
  }
}

TEST_F(RebuildTest, ATraceShowsTheAttempts) {
  Start({.decode = 2, .trace = "all"});
  HoldDecode(3);
  v1::GenerateRequest request = Ids(5, 10);
  request.set_request_id("traced");
  Call call(*stub_, request);
  ReadTokens(call, 4);
  EndDecoding();
  ASSERT_TRUE(call.Finish().status.ok());
  absl::StatusOr<v1::Trace> trace = parts_->tracer->Get("traced");
  while (!trace.ok() && RetryAfter(trace.status())) trace = parts_->tracer->Get("traced");  // it is not whole yet
  ASSERT_TRUE(trace.ok()) << trace.status();
  std::vector<int64_t> decoded, rebuilt;
  for (const v1::TraceSpan& span : trace->processes(0).spans()) {
    if (span.name() == "decode") decoded.push_back(span.amount());
    if (span.name() == "rebuild") rebuilt.push_back(span.amount());
  }
  EXPECT_EQ(decoded, (std::vector<int64_t>{4, 6}));
  EXPECT_EQ(rebuilt, (std::vector<int64_t>{4}));
}

// In the middle of a stop string, of a character, and of neither.
class RebuildTextTest : public RebuildTest, public ::testing::WithParamInterface<int> {};

TEST_P(RebuildTextTest, TextThatWasHeldBackIsRight) {
  Start({.decode = 2});
  const v1::GenerateRequest request = RequestForText();
  const Got whole = Generate(request);
  ASSERT_EQ(whole.text(), "caf\u00e9 \u2603 one t");
  for (auto& worker : decode_) worker->AwaitLeases(0);
  const size_t before = decode_[0]->decode_requests().size();
  HoldDecode(GetParam());
  Call call(*stub_, request);
  ReadTokens(call, GetParam() + 1);
  const size_t one = decode_[0]->decode_requests().size() > before ? 0 : 1;
  decode_[1 - one]->Change([](FakeBehaviour& b) { b.decode_until = 1 << 30; });
  decode_[one].reset();
  const Got got = call.Finish();
  EXPECT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.text(), whole.text());
  EXPECT_EQ(got.ids(), whole.ids());
  EXPECT_EQ(got.finished().reason(), v1::FINISH_REASON_STOP);
  EXPECT_GE(got.finished().failovers(), 1);
  decode_.erase(decode_.begin() + static_cast<std::ptrdiff_t>(one));
}

INSTANTIATE_TEST_SUITE_P(Behind, RebuildTextTest, ::testing::Range(2, 12, 3));

// The client itself goes on: with another router, as it were.
class OutputIdsTest : public RebuildTest {
 protected:
  static v1::GenerateRequest With(v1::GenerateRequest request, const std::vector<int32_t>& output) {
    request.mutable_output_ids()->Assign(output.begin(), output.end());
    return request;
  }
};

TEST_F(OutputIdsTest, TheAnswerGoesOnExactlyBehindThem) {
  Start();
  v1::GenerateRequest request = With(Ids(5, 10), Counting(100, 103));
  request.mutable_sampling()->set_temperature(0.5f);
  request.mutable_sampling()->set_seed(11);
  const Got got = Generate(request);
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.ids(), Counting(103, 110));
  EXPECT_EQ(CountStarted(got), 1);
  EXPECT_EQ(got.responses.at(1).tokens().index(), 3);
  EXPECT_EQ(got.finished().usage().completion_tokens(), 10) << "those that the client had count once";
  EXPECT_EQ(got.finished().reason(), v1::FINISH_REASON_LENGTH);
  const v1::DecodeRequest asked = decode_[0]->decode_requests().at(0);
  EXPECT_EQ(asked.output_from(), 5);
  EXPECT_EQ(asked.prompt_ids_size(), 8);
  EXPECT_EQ(Metric("runahead_generated_tokens_total"), 7);
  EXPECT_EQ(
      Metric("runahead_time_to_first_token_seconds_count{chain_width=\"1\",model=\"tiny\",prompt_class=\"le256\"}"), 1);
  decode_[0]->AwaitLeases(0);
}

TEST_F(OutputIdsTest, TextJoinsAcrossTheBorder) {
  Start();
  const v1::GenerateRequest request = RequestForText();
  const Got whole = Generate(request);
  ASSERT_EQ(whole.text(), "caf\u00e9 \u2603 one t");
  // What a client has when its stream breaks behind any message.
  std::vector<int32_t> had;
  std::string text;
  for (const v1::GenerateResponse& response : whole.responses) {
    had.insert(had.end(), response.tokens().ids().begin(), response.tokens().ids().end());
    text += response.tokens().text();
    if (had.empty() || response.has_finished()) continue;
    const Got rest = Generate(With(request, had));
    ASSERT_TRUE(rest.status.ok()) << rest.status;
    EXPECT_EQ(text + rest.text(), whole.text()) << had.size();
    EXPECT_EQ(rest.finished().reason(), v1::FINISH_REASON_STOP);
    EXPECT_EQ(rest.finished().usage().completion_tokens(), whole.finished().usage().completion_tokens());
  }
}

TEST_F(OutputIdsTest, ItGoesOnWhereAWorkerDiesBeforeAnyTokenOfItsOwn) {
  Start({.decode = 2});
  HoldDecode(0);
  Call call(*stub_, With(Ids(5, 10), Counting(100, 103)));
  AwaitDecodeRequest();
  KillDecoding();
  const Got got = call.Finish();
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.ids(), Counting(103, 110));
  EXPECT_GE(got.finished().failovers(), 1);
}

TEST_F(OutputIdsTest, OfAnAnswerThatHasEndedOnlyTheEndComes) {
  Start();
  std::vector<int32_t> stopped = Counting(100, 104);
  stopped.push_back(kSyntheticImEnd);
  const struct {
    std::vector<int32_t> output;
    v1::FinishReason reason;
  } cases[] = {{Counting(100, 110), v1::FINISH_REASON_LENGTH}, {stopped, v1::FINISH_REASON_STOP}};
  for (const auto& of : cases) {
    const Got got = Generate(With(Ids(5, 10), of.output));
    ASSERT_TRUE(got.status.ok()) << got.status;
    EXPECT_TRUE(got.ids().empty());
    EXPECT_EQ(got.finished().reason(), of.reason);
    EXPECT_EQ(got.started().prompt_tokens(), 5);
    EXPECT_EQ(got.finished().usage().completion_tokens(), static_cast<int>(of.output.size()));
  }
  EXPECT_TRUE(decode_[0]->decode_requests().empty());
}

TEST_F(OutputIdsTest, WhatIsWrongIsRefusedByItsField) {
  Start();
  const auto blamed = [this](const v1::GenerateRequest& request) {
    const absl::Status status = Generate(request).status;
    EXPECT_TRUE(absl::IsInvalidArgument(status) || absl::IsOutOfRange(status)) << status;
    return BlamedField(status).value_or("");
  };
  EXPECT_EQ(blamed(With(Ids(5, 10), {100, -1})), "output_ids[1]");
  EXPECT_EQ(blamed(With(Ids(5, 10), {model_.vocabulary_size})), "output_ids[0]");
  EXPECT_EQ(blamed(With(Ids(5, 3), Counting(100, 104))), "output_ids[3]");
  EXPECT_EQ(blamed(With(Ids(5, 10), {100, kSyntheticImEnd, 101})), "output_ids[2]");
  EXPECT_EQ(blamed(With(Ids(5, 10), std::vector<int32_t>(testing::kFixtureContext, 100))), "output_ids");
  v1::GenerateRequest drawn = With(Ids(5, 10), {100});
  drawn.mutable_sampling()->set_temperature(1);
  EXPECT_EQ(blamed(drawn), "sampling.seed");
  EXPECT_TRUE(decode_[0]->decode_requests().empty());
}

}  // namespace
}  // namespace runahead
