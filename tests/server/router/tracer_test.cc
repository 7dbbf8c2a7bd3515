#include "server/router/tracer.h"

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

absl::Time After(int64_t us) {
  return absl::FromUnixSeconds(1000) + absl::Microseconds(us);
}

v1::Capabilities Worker(const std::string& name, const std::vector<v1::WorkerRole>& roles = {}) {
  v1::Capabilities worker;
  worker.set_name(name);
  for (const v1::WorkerRole role : roles) worker.add_roles(role);
  return worker;
}

const TraceContext kSampled{std::string(32, 'a'), std::string(16, 'b'), true};
const TraceContext kUnsampled{std::string(32, 'c'), std::string(16, 'd'), false};

TEST(Tracer, ModesSayWhoIsRecorded) {
  const std::optional<TraceContext> nobody;
  const auto off = Tracer::Create(TraceMode::kOff, 4), asked = Tracer::Create(TraceMode::kAsked, 4),
             all = Tracer::Create(TraceMode::kAll, 4);
  EXPECT_EQ(off->Begin("r", kSampled, After(0)), nullptr);
  EXPECT_EQ(asked->Begin("r", nobody, After(0)), nullptr);
  EXPECT_EQ(asked->Begin("r", kUnsampled, After(0)), nullptr);
  EXPECT_NE(asked->Begin("r", kSampled, After(0)), nullptr);
  EXPECT_NE(all->Begin("r", nobody, After(0)), nullptr);
  EXPECT_NE(all->Begin("r", kUnsampled, After(0)), nullptr);
  EXPECT_EQ(ParseTraceMode("asked"), TraceMode::kAsked);
  EXPECT_EQ(ParseTraceMode("all"), TraceMode::kAll);
  EXPECT_EQ(ParseTraceMode("off"), TraceMode::kOff);
}

TEST(Tracer, WorkersGetASpanOfTheCallersTrace) {
  const auto tracer = Tracer::Create(TraceMode::kAll, 4);
  const auto trace = tracer->Begin("r", kUnsampled, After(0));
  EXPECT_EQ(trace->trace_id(), kUnsampled.trace_id);
  const auto sent = ParseTraceparent(trace->traceparent());
  ASSERT_TRUE(sent.has_value());
  EXPECT_EQ(sent->trace_id, kUnsampled.trace_id);
  EXPECT_NE(sent->span_id, kUnsampled.span_id) << "the router's own";
  EXPECT_TRUE(sent->sampled) << "it is recorded";
}

TEST(Tracer, AWorkersSpansComeToTheRoutersClock) {
  const auto tracer = Tracer::Create(TraceMode::kAll, 4);
  auto trace = tracer->Begin("r", std::nullopt, After(0));
  trace->Add("queue", After(0), After(30));
  trace->Add("decode", After(500), After(700), 12);
  PeerClock clock;
  clock.Asked(1, After(0));
  const absl::Duration ahead = absl::Hours(30);
  clock.Answered(1, absl::ToUnixNanos(After(10) + ahead), After(20));
  v1::TraceSpans spans;
  v1::TraceSpan& qkv = *spans.add_spans();
  qkv.set_name("qkv");
  qkv.set_layer(3);
  qkv.set_start_ns(absl::ToUnixNanos(After(100) + ahead));
  qkv.set_duration_ns(7000);
  qkv.set_amount(64);
  spans.set_dropped(2);
  trace->AddWorker(Worker("both-0"), spans, clock, After(1020));
  spans.set_dropped(1);
  trace->AddWorker(Worker("both-0"), spans, clock, After(1020));
  trace.reset();

  const absl::StatusOr<v1::Trace> kept = tracer->Get("r");
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->request_id(), "r");
  EXPECT_EQ(kept->trace_id().size(), 32u);
  ASSERT_EQ(kept->processes_size(), 2);
  const v1::TraceProcess &router = kept->processes(0), &worker = kept->processes(1);
  EXPECT_EQ(router.name(), "router");
  EXPECT_EQ(router.clock_error_ns(), 0);
  ASSERT_EQ(router.spans_size(), 2);
  EXPECT_EQ(router.spans(1).start_ns(), 500'000);
  EXPECT_EQ(router.spans(1).duration_ns(), 200'000);
  EXPECT_EQ(router.spans(1).amount(), 12);
  EXPECT_EQ(worker.name(), "both-0");
  ASSERT_EQ(worker.spans_size(), 2);
  EXPECT_EQ(worker.spans(0).name(), "qkv");
  EXPECT_EQ(worker.spans(0).layer(), 3);
  EXPECT_EQ(worker.spans(0).start_ns(), 100'000);
  EXPECT_EQ(worker.spans(0).duration_ns(), 7000);
  EXPECT_EQ(worker.dropped(), 3);
  // Half of the round trip; what the clocks may have gone apart since the ping, and within the request.
  EXPECT_EQ(worker.clock_error_ns(), 10'000 + 100 + 102);
}

TEST(Tracer, WhatIsKeptIsExportedWithItsSpanItsCallerAndWhatEachProcessIs) {
  std::vector<WholeTrace> exported;
  const auto tracer =
      Tracer::Create(TraceMode::kAsked, 1, [&](WholeTrace whole) { exported.push_back(std::move(whole)); });
  auto trace = tracer->Begin("r", kSampled, After(5));
  const auto sent = ParseTraceparent(trace->traceparent());
  for (const auto& [name, roles] : std::vector<std::pair<std::string, std::vector<v1::WorkerRole>>>{
           {"p", {v1::WORKER_ROLE_PREFILL}},
           {"d", {v1::WORKER_ROLE_DECODE}},
           {"b", {v1::WORKER_ROLE_PREFILL, v1::WORKER_ROLE_DECODE}}}) {
    trace->AddWorker(Worker(name, roles), v1::TraceSpans(), PeerClock(), After(10));
  }
  trace->Describe({.chat = true, .model = "tiny"});
  EXPECT_TRUE(exported.empty()) << "it is not whole";
  trace.reset();
  ASSERT_EQ(exported.size(), 1u);
  const WholeTrace& whole = exported[0];
  EXPECT_EQ(whole.span.span_id, sent->span_id) << "what workers have as their parent";
  EXPECT_EQ(whole.parent_span_id, kSampled.span_id);
  EXPECT_EQ(whole.trace.trace_id(), kSampled.trace_id);
  EXPECT_EQ(whole.arrival_ns, absl::ToUnixNanos(After(5)));
  EXPECT_THAT(whole.services,
              ::testing::ElementsAre("runahead-router", "runahead-prefill", "runahead-decode", "runahead-worker"));
  EXPECT_TRUE(whole.request.chat);
  EXPECT_EQ(whole.trace.request_id(), "r");
  EXPECT_TRUE(tracer->Get("r").ok()) << "it is kept, too";
}

TEST(Tracer, SpansOfAClockThatIsNotKnownAreDropped) {
  const auto tracer = Tracer::Create(TraceMode::kAll, 4);
  v1::TraceSpans spans;
  spans.add_spans()->set_name("qkv");
  spans.set_dropped(2);
  tracer->Begin("r", std::nullopt, After(0))->AddWorker(Worker("p"), spans, PeerClock(), After(10));
  const v1::Trace trace = *tracer->Get("r");
  EXPECT_EQ(trace.processes(1).spans_size(), 0);
  EXPECT_EQ(trace.processes(1).dropped(), 3);
}

TEST(Tracer, SaysWhyThereIsNoTrace) {
  const auto tracer = Tracer::Create(TraceMode::kAsked, 2);
  const auto why = [&](const Tracer& of, const std::string& id) {
    const absl::Status status = of.Get(id).status();
    EXPECT_TRUE(absl::IsNotFound(status)) << status;
    EXPECT_EQ(RetryAfter(status).has_value(), absl::StrContains(status.message(), "has not ended")) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(why(*Tracer::Create(TraceMode::kOff, 2), "r"), HasSubstr("--trace=asked"));
  EXPECT_THAT(why(*tracer, "r"), HasSubstr("was not recorded"));
  auto running = tracer->Begin("r", kSampled, After(0));
  const auto also = running;
  running.reset();
  EXPECT_THAT(why(*tracer, "r"), HasSubstr("has not ended")) << "somebody has something to add";
  for (const char* id : {"a", "b", "c"}) tracer->Begin(id, kSampled, After(0));
  EXPECT_THAT(why(*tracer, "a"), HasSubstr("is not kept any more: the router keeps the last 2"));
  EXPECT_TRUE(tracer->Get("b").ok());
  EXPECT_TRUE(tracer->Get("c").ok());
}

TEST(Tracer, OfOneNameTheLastThatEndedIsGiven) {
  const auto tracer = Tracer::Create(TraceMode::kAsked, 4);
  const TraceContext other{std::string(32, 'e'), std::string(16, 'f'), true};
  auto first = tracer->Begin("r", kSampled, After(0)), second = tracer->Begin("r", other, After(0));
  second.reset();
  EXPECT_EQ(tracer->Get("r")->trace_id(), other.trace_id);
  first.reset();
  EXPECT_EQ(tracer->Get("r")->trace_id(), kSampled.trace_id);
}

TEST(Tracer, ATraceMayOutliveIt) {
  auto tracer = Tracer::Create(TraceMode::kAll, 4);
  const auto trace = tracer->Begin("r", std::nullopt, After(0));
  tracer.reset();
  trace->Add("queue", After(0), After(1));
}

}  // namespace
}  // namespace runahead
