// What the router asks of workers for a request that is traced, and what it makes of what they send: with fake workers.
#include "server/router/request_trace.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/monotonic.h"
#include "server/rpc/status.h"
#include "server/task/run_here.h"
#include "tests/testing/await.h"
#include "tests/testing/router_fixture.h"

namespace runahead {
namespace {

using testing::FakeBehaviour;
using testing::Got;
using ::testing::HasSubstr;

constexpr char kAsked[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
constexpr char kTraceId[] = "0af7651916cd43dd8448eb211c80319c";
constexpr absl::Duration kAhead = absl::Hours(3);

class RequestTraceTest : public testing::RouterFixture {
 protected:
  void StartTraced(const std::string& mode) {
    RouterSetup setup;
    setup.trace = mode;
    setup.exported = [this](WholeTrace whole) {
      MutexLock lock(mu_);
      exported_.push_back(std::move(whole));
    };
    setup.before = [](testing::FakeWorker& worker) {
      worker.Change([](FakeBehaviour& b) {
        b.clock_ahead = kAhead;
        v1::TraceSpan& span = *b.spans.add_spans();
        span.set_name("qkv");
        span.set_layer(0);
        span.set_start_ns(absl::ToUnixNanos(MonotonicNow() + kAhead));
        span.set_duration_ns(1000);
      });
    };
    Start(setup);
  }
  using RouterSetup = testing::RouterSetup;

  Got GenerateWith(const std::vector<std::string>& traceparents, int max_tokens = 4,
                   const std::string& request_id = "traced") {
    v1::GenerateRequest request = Ids(20, max_tokens);
    request.mutable_experiment()->set_width(2);
    request.set_request_id(request_id);
    return testing::Call(*stub_, request, absl::InfiniteDuration(), traceparents).Finish();
  }

  absl::StatusOr<v1::Trace> GetTrace(const std::string& id) {
    while (true) {
      grpc::ClientContext context;
      v1::GetTraceRequest request;
      request.set_request_id(id);
      v1::Trace trace;
      const absl::Status status = FromGrpcStatus(stub_->GetTrace(&context, request, &trace));
      if (status.ok()) return trace;
      if (!RetryAfter(status)) return status;  // it is not whole yet
    }
  }

  // The first one.
  WholeTrace AwaitExported() {
    EXPECT_TRUE(testing::Await("a trace is exported", [&] {
      MutexLock lock(mu_);
      return !exported_.empty();
    }));
    MutexLock lock(mu_);
    return exported_.empty() ? WholeTrace() : exported_[0];
  }

  Mutex mu_;
  std::vector<WholeTrace> exported_ RUNAHEAD_GUARDED_BY(mu_);
};

TEST_F(RequestTraceTest, WhatWorkersRecordComesOnTheRoutersClock) {
  StartTraced("asked");
  const absl::Time began = MonotonicNow();
  const Got got = GenerateWith({kAsked});
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.ids(), (std::vector<int32_t>{100, 101, 102, 103})) << "the reply with spans is no token";
  const absl::StatusOr<v1::Trace> trace = GetTrace("traced");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->trace_id(), kTraceId);
  std::map<std::string, const v1::TraceProcess*> processes;
  for (const v1::TraceProcess& process : trace->processes()) processes[process.name()] = &process;
  EXPECT_EQ(processes.size(), 4u);
  for (const char* name : {"prefill-0", "prefill-1", "decode-0"}) {
    ASSERT_TRUE(processes.contains(name)) << name;
    const v1::TraceProcess& process = *processes[name];
    ASSERT_EQ(process.spans_size(), 1) << name;
    EXPECT_GT(process.clock_error_ns(), 0);
    EXPECT_LT(process.clock_error_ns(), 1'000'000'000);
    // It was at the workers' start, on a clock that is ahead: now it is a little before the request, on ours.
    EXPECT_LT(process.spans(0).start_ns(), process.clock_error_ns());
    EXPECT_GT(process.spans(0).start_ns(), -absl::ToInt64Nanoseconds(absl::Minutes(10)));
  }
  const absl::Duration took = MonotonicNow() - began;
  std::map<std::string, int64_t> stages;
  for (const v1::TraceSpan& span : processes["router"]->spans()) {
    stages[span.name()] += span.duration_ns();
    EXPECT_GE(span.start_ns(), 0);
    EXPECT_LE(span.start_ns() + span.duration_ns(), absl::ToInt64Nanoseconds(took));
  }
  int64_t ttft = 0;
  for (const auto& [stage, seconds] : got.finished().timing().stages()) {
    EXPECT_NEAR(static_cast<double>(stages[stage]), 1e9 * seconds, 10) << stage;
    ttft += stages[stage];
  }
  EXPECT_NEAR(static_cast<double>(ttft), 1e9 * got.finished().timing().ttft_s(), 10);
  EXPECT_GT(stages["decode"], 0);
  EXPECT_GE(stages["request"], ttft + stages["decode"]);
}

TEST_F(RequestTraceTest, TheTraceGoesOnToEveryWorker) {
  StartTraced("asked");
  ASSERT_TRUE(GenerateWith({kAsked}).status.ok());
  std::vector<std::string> sent;
  for (auto& worker : prefill_) sent.push_back(worker->AwaitStarts(1).at(0).traceparent());
  sent.push_back(decode_[0]->decode_requests().at(0).traceparent());
  for (const std::string& header : sent) {
    EXPECT_EQ(header, sent[0]) << "one span of the router's";
    const auto context = ParseTraceparent(header);
    ASSERT_TRUE(context.has_value()) << header;
    EXPECT_EQ(context->trace_id, kTraceId);
    EXPECT_NE(header, kAsked);
  }
}

TEST_F(RequestTraceTest, NothingIsRecordedUnlessItIsWanted) {
  StartTraced("asked");
  const std::string unsampled = std::string(kAsked).substr(0, 53) + "00";
  size_t starts = 0;
  for (const std::vector<std::string>& headers :
       std::vector<std::vector<std::string>>{{}, {unsampled}, {"00-not-a-traceparent-01"}, {kAsked, kAsked}}) {
    ASSERT_TRUE(GenerateWith(headers).status.ok());
    EXPECT_EQ(prefill_[0]->AwaitStarts(++starts).back().traceparent(), "");
    EXPECT_EQ(decode_[0]->decode_requests().back().traceparent(), "");
    EXPECT_THAT(GetTrace("traced").status().message(), HasSubstr("was not recorded"));
  }
}

TEST_F(RequestTraceTest, AllAreRecordedWhereTheRouterSaysSo) {
  StartTraced("all");
  ASSERT_TRUE(GenerateWith({"malformed"}).status.ok());
  const absl::StatusOr<v1::Trace> trace = GetTrace("traced");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->trace_id().size(), 32u);
  EXPECT_TRUE(GenerateWith({kAsked}, /*max_tokens=*/1, "short").status.ok());
  const absl::StatusOr<v1::Trace> again = GetTrace("short");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->trace_id(), kTraceId);
  EXPECT_EQ(again->processes_size(), 3) << "nothing was decoded";
}

TEST_F(RequestTraceTest, ACollectorIsToldWhatWasAskedForAndWhatCameOfIt) {
  StartTraced("asked");
  v1::GenerateRequest request = Prompt("a b c d e f", 4);
  request.set_request_id("traced");
  request.mutable_sampling()->set_temperature(0.5F);
  (*request.mutable_sampling()->mutable_logit_bias())[3] = 1;
  const absl::Time began = absl::Now();
  const Got got = testing::Call(*stub_, request, absl::InfiniteDuration(), {kAsked}).Finish();
  ASSERT_TRUE(got.status.ok()) << got.status;
  const WholeTrace whole = AwaitExported();
  EXPECT_EQ(whole.parent_span_id, ParseTraceparent(kAsked)->span_id);
  EXPECT_FALSE(whole.request.chat);
  EXPECT_EQ(whole.request.model, model_.name);
  EXPECT_EQ(whole.request.sampling.temperature(), 0.5F);
  EXPECT_FALSE(whole.request.sampling.has_seed()) << "the client gave none";
  EXPECT_TRUE(whole.request.sampling.logit_bias().empty());
  EXPECT_EQ(whole.request.max_tokens, 4);
  EXPECT_EQ(whole.request.finish_reason, got.finished().reason());
  EXPECT_EQ(whole.request.prompt_tokens, got.finished().usage().prompt_tokens());
  EXPECT_EQ(whole.request.generated_tokens, got.finished().usage().completion_tokens());
  EXPECT_NEAR(absl::ToDoubleSeconds(whole.request.ttft), got.finished().timing().ttft_s(), 1e-6);
  const absl::Time arrival = absl::FromUnixNanos(whole.arrival_ns) + whole.request.wall_ahead;
  EXPECT_GT(arrival, began - absl::Seconds(1)) << "on the clock of the day";
  EXPECT_LT(arrival, absl::Now() + absl::Seconds(1));
}

TEST_F(RequestTraceTest, ACollectorIsToldOfAFailureAndThatItWasAChat) {
  StartTraced("all");
  v1::GenerateRequest request;
  v1::ChatMessage& message = *request.mutable_chat()->add_messages();
  message.set_role("user");
  message.set_content("hello");
  request.mutable_stop()->set_max_tokens(model_.context_length);
  const Got got = testing::Call(*stub_, request, absl::InfiniteDuration(), {}).Finish();
  ASSERT_FALSE(got.status.ok());
  const WholeTrace whole = AwaitExported();
  EXPECT_TRUE(whole.request.chat);
  EXPECT_EQ(whole.request.status.code(), got.status.code());
  EXPECT_EQ(whole.request.status.message(), got.status.message());
  EXPECT_EQ(whole.request.ttft, absl::ZeroDuration());
  EXPECT_EQ(whole.parent_span_id, "");
}

TEST_F(RequestTraceTest, AFailureIsRecordedToo) {
  StartTraced("all");
  prefill_[1]->Change([](FakeBehaviour& b) { b.prefill_end = absl::InternalError("a fault"); });
  EXPECT_FALSE(GenerateWith({}).status.ok());
  const absl::StatusOr<v1::Trace> trace = GetTrace("traced");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->processes_size(), 3);
}

TEST_F(RequestTraceTest, TheLogNamesTheTrace) {
  StartTraced("off");
  CancelToken cancel;
  class NoSink final : public ResponseSink {
    void Send(v1::GenerateResponse) override {}
  } sink;
  const absl::Time now = RealClock().Now();
  Session session(*parts_, Ids(10, 1), now, absl::InfiniteFuture(), cancel, sink, ParseTraceparent(kAsked));
  const absl::Status status = RunHere(session.Run());
  EXPECT_EQ(session.Record(status).trace_id, kTraceId) << "whether it is recorded or not";
  Session another(*parts_, Ids(10, 1), now, absl::InfiniteFuture(), cancel, sink);
  EXPECT_TRUE(another.Record(RunHere(another.Run())).trace_id.empty());
}

}  // namespace
}  // namespace runahead
