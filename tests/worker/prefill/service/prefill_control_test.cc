#include "worker/prefill/service/prefill_control.h"

#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/monotonic.h"
#include "tests/testing/chain_fixture.h"
#include "worker/prefill/service/job_from_proto.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

// Fails every push, as long as it is told to.
class UnreachableDecode final : public HandoffSender {
 public:
  Event Push(const PeerId&, const Slice&, ConstBufferRef, const Event&) override {
    EventSource ended;
    ended.Fire(reachable ? absl::NotFoundError("no such lease") : absl::UnavailableError("no way there"));
    return ended.event();
  }
  void Cancel(const LeaseId&) override {}
  bool reachable = false;
};

// A control whose jobs run on a chain of one. What the control refuses is told to `reports_`, what the stage says to
// the chain's own board.
class PrefillControlTest : public ::testing::Test {
 protected:
  PrefillControlTest()
      : loaded_(LoadForTest(WriteSynthetic(SyntheticModel(), "prefill_control"), DType::kF32, 1)),
        chain_(loaded_, 1, 30),
        registry_("none"),
        metrics_(registry_),
        paths_(std::make_unique<UnreachableDecode>()),
        control_(*chain_.member(0).edges, paths_, metrics_, registry_) {
    control_.Bind(chain_.member(0).stage.get(), [this](v1::ControlReport report) { reports_.push_back(report); });
  }

  v1::StartJob Job(uint64_t id) {
    v1::StartJob start;
    start.set_job(id);
    for (const int bound : {0, 10}) start.add_bounds(bound);
    for (int i = 0; i < 10; ++i) start.add_ids(i);
    return start;
  }

  const LoadedModel loaded_;
  TestChain chain_;
  MetricRegistry registry_;
  PrefillMetrics metrics_;
  DecodePaths paths_;
  PrefillControl control_;
  std::vector<v1::ControlReport> reports_;  // of this thread
};

TEST_F(PrefillControlTest, RefusesSamplingThatMakesNoSense) {
  const std::vector<std::pair<std::string, std::function<void(v1::SamplingParams&)>>> wrong = {
      {"sampling.temperature: is nan", [](v1::SamplingParams& s) { s.set_temperature(std::nanf("")); }},
      {"sampling.top_k: is -1", [](v1::SamplingParams& s) { s.set_top_k(-1); }},
      {"sampling.top_p: is -1", [](v1::SamplingParams& s) { s.set_top_p(-1); }},
      {"sampling.min_p: is 5", [](v1::SamplingParams& s) { s.set_min_p(5); }},
      {"sampling.repetition_penalty: is 0", [](v1::SamplingParams& s) { s.set_repetition_penalty(0); }},
      {"sampling.presence_penalty: is -3", [](v1::SamplingParams& s) { s.set_presence_penalty(-3); }},
      {"sampling.frequency_penalty: is inf", [](v1::SamplingParams& s) { s.set_frequency_penalty(INFINITY); }},
      {"sampling.logprobs: is 2.14748e+09",
       [](v1::SamplingParams& s) { s.set_logprobs(std::numeric_limits<int32_t>::max()); }},
      {"sampling.logit_bias: is -1", [](v1::SamplingParams& s) { (*s.mutable_logit_bias())[-1] = 1; }},
      {"sampling.logit_bias[3]: is nan", [](v1::SamplingParams& s) { (*s.mutable_logit_bias())[3] = std::nanf(""); }}};
  uint64_t job = 0;
  for (const auto& [message, spoil] : wrong) {
    v1::StartJob start = Job(++job);
    spoil(*start.mutable_sampling());
    control_.OnStart(start);
    ASSERT_EQ(reports_.size(), job) << message;
    const v1::JobDone& done = reports_.back().done();
    EXPECT_EQ(done.job(), job);
    EXPECT_EQ(done.code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(done.message(), HasSubstr(message));
  }
  v1::StartJob start = Job(++job);
  start.mutable_rules()->add_bad_ids();
  control_.OnStart(start);
  ASSERT_EQ(reports_.size(), job);
  EXPECT_THAT(reports_.back().done().message(), HasSubstr("rules.bad_ids[0]: has 0 ids"));
  control_.OnStart(Job(++job));
  EXPECT_TRUE(chain_.member(0).news.AwaitDone(job).ok());
}

TEST_F(PrefillControlTest, AStartSaysWhetherThePromptIsScored) {
  v1::StartJob start = Job(1);
  EXPECT_EQ(JobFromProto(start, MonotonicNow()).prompt_logprobs, -1);
  start.set_prompt_logprobs(0);
  start.set_next_id(7);
  EXPECT_EQ(JobFromProto(start, MonotonicNow()).prompt_logprobs, 0);
  EXPECT_EQ(JobFromProto(start, MonotonicNow()).next_id, 7);
  start.set_prompt_logprobs(1);
  control_.OnStart(start);
  EXPECT_EQ(chain_.member(0).news.AwaitDone(1), absl::OkStatus());
  EXPECT_EQ(chain_.member(0).news.scores(1).size(), 9u);
  start.set_job(2);
  start.set_prompt_logprobs(kMostLogprobs + 1);
  control_.OnStart(start);
  EXPECT_THAT(chain_.member(0).news.AwaitDone(2).message(), HasSubstr("prompt_logprobs: 21 is not in [0, 20]"));
}

TEST_F(PrefillControlTest, ScoresAreReportedWithTheirJobAndPlace) {
  PrefillJob job;
  job.id = 3;
  control_.OnPromptScores(job, 65, {{{7, -0.5f}, {9, -1}}, {{8, -2}}});
  ASSERT_EQ(reports_.size(), 1u);
  const v1::PromptScores& scores = reports_[0].scores();
  EXPECT_EQ(scores.job(), 3u);
  EXPECT_EQ(scores.index(), 65);
  ASSERT_EQ(scores.logprobs_size(), 2);
  ASSERT_EQ(scores.logprobs(0).top_size(), 2);
  EXPECT_EQ(scores.logprobs(0).top(0).id(), 7);
  EXPECT_EQ(scores.logprobs(0).top(0).logprob(), -0.5f);
  EXPECT_EQ(scores.logprobs(0).top(1).id(), 9);
  EXPECT_EQ(scores.logprobs(1).top(0).id(), 8);
}

TEST_F(PrefillControlTest, SpansGoBackWithTheEndOfAJobThatIsTraced) {
  PrefillJob job;
  job.id = 3;
  job.bounds = {0, 10};
  control_.OnDone(job, {}, {});
  EXPECT_FALSE(reports_.back().done().has_spans());
  job.spans = std::make_shared<SpanRecorder>(1);
  for (int64_t layer : {4, 5}) {
    job.spans->Add("qkv", layer, absl::FromUnixNanos(70), absl::FromUnixNanos(100), 64);
  }
  control_.OnDone(job, {absl::CancelledError("asked to"), JobCause::kRouter}, {});
  const v1::TraceSpans& spans = reports_.back().done().spans();
  ASSERT_EQ(spans.spans_size(), 1);
  EXPECT_EQ(spans.dropped(), 1);
  EXPECT_EQ(spans.spans(0).name(), "qkv");
  EXPECT_EQ(spans.spans(0).layer(), 4);
  EXPECT_EQ(spans.spans(0).start_ns(), 70);
  EXPECT_EQ(spans.spans(0).duration_ns(), 30);
  EXPECT_EQ(spans.spans(0).amount(), 64);
}

// Keeps whom edges are opened to, and opens none.
class AskedEdges final : public EdgeFactory {
 public:
  PeerId self() const override { return {"here", 1}; }
  absl::StatusOr<std::shared_ptr<Edge>> Open(const PeerId& peer) override {
    asked.push_back(peer);
    return absl::UnavailableError("there are no edges here");
  }
  void Close(const PeerId&) override {}
  std::vector<PeerId> asked;
};

TEST_F(PrefillControlTest, AnEdgeIsOpenedToAllThatTheLineSaysOfThePeer) {
  AskedEdges edges;
  DecodePaths paths(std::make_unique<UnreachableDecode>());
  PrefillControl control(edges, paths, metrics_, registry_);
  std::vector<v1::ControlReport> reports;
  control.Bind(nullptr, [&](v1::ControlReport report) { reports.push_back(report); });
  v1::FormLine line;
  line.mutable_successor()->set_link_address("there");
  line.mutable_successor()->set_incarnation(7);
  line.mutable_successor()->set_device_link("nccl");
  line.mutable_successor()->set_epoch(3);
  line.mutable_successor()->set_generation(2);
  control.OnFormLine(line);
  ASSERT_EQ(edges.asked.size(), 1u);
  EXPECT_EQ(edges.asked[0].address, "there");
  EXPECT_EQ(edges.asked[0].incarnation, 7u);
  EXPECT_EQ(edges.asked[0].device_link, "nccl");
  EXPECT_EQ(edges.asked[0].key(), (PeerKey{7, 3, 2}));
  // That none could be opened is told once; the same line again asks for nothing.
  control.OnPing();
  control.OnFormLine(line);
  control.OnPing();
  EXPECT_EQ(edges.asked.size(), 1u);
  ASSERT_EQ(reports.size(), 1u);
  ASSERT_EQ(reports[0].paths().states_size(), 1);
  const v1::PathState& state = reports[0].paths().states(0);
  EXPECT_EQ(state.condition(), v1::PATH_CONDITION_BROKEN);
  EXPECT_EQ(state.peer().incarnation(), 7u);
  EXPECT_EQ(state.peer().epoch(), 3u);
  EXPECT_EQ(state.generation(), 2u);
  EXPECT_EQ(state.message(), "there are no edges here");
}

// Moves nothing, and knows which jobs were dropped.
class IdleEdge final : public Edge {
 public:
  Event SendSummed(FrameId, ConstBufferRef, const Event& after, std::shared_ptr<const FrameSum>) override {
    return after;
  }
  Reception Recv(FrameId, BufferRef) override { return {Event(), nullptr, nullptr}; }
  Event Finish(JobId) override { return {}; }
  void Drop(JobId job) override { dropped.push_back(job); }
  absl::Status Health() const override { return absl::OkStatus(); }
  bool Opened() const override { return true; }
  std::vector<JobId> dropped;
};

class IdleEdges final : public EdgeFactory {
 public:
  PeerId self() const override { return {"here", 1}; }
  absl::StatusOr<std::shared_ptr<Edge>> Open(const PeerId& peer) override {
    return to[peer.incarnation] = std::make_shared<IdleEdge>();
  }
  void Close(const PeerId&) override {}
  std::map<uint64_t, std::shared_ptr<IdleEdge>> to;
};

// How paths stand is told once; an answer to the router's question says all the same that there is nothing new.
TEST_F(PrefillControlTest, AQuestionIsAnsweredWithWhatHasChangedSinceTheLastReport) {
  AskedEdges edges;
  DecodePaths paths(std::make_unique<UnreachableDecode>());
  PrefillControl control(edges, paths, metrics_, registry_);
  std::vector<v1::PathStates> told;
  control.Bind(nullptr, [&](v1::ControlReport report) { told.push_back(report.paths()); });
  v1::FormLine line;
  line.mutable_successor()->set_incarnation(7);
  line.mutable_successor()->set_generation(1);
  line.set_question(3);
  control.OnFormLine(line);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].question(), 3u);
  EXPECT_EQ(told[0].states_size(), 1) << "that the edge could not be opened";
  line.set_question(4);
  control.OnFormLine(line);
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[1].question(), 4u);
  EXPECT_EQ(told[1].states_size(), 0);
}

v1::FormLine LineAfter(uint64_t predecessor) {
  v1::FormLine line;
  line.mutable_predecessor()->set_incarnation(predecessor);
  line.mutable_predecessor()->set_generation(1);
  return line;
}

// A worker may have joined the line between the two since the plan was made.
TEST_F(PrefillControlTest, AStartMeansTheNeighboursThatItNames) {
  IdleEdges edges;
  PrefillControl control(edges, paths_, metrics_, registry_);
  std::vector<v1::JobDone> ends;
  control.Bind(chain_.member(0).stage.get(), [&](v1::ControlReport report) { ends.push_back(report.done()); });
  control.OnFormLine(LineAfter(7));
  control.OnFormLine(LineAfter(8));
  v1::StartJob start = Job(1);
  start.add_bounds(12);
  start.set_part(1);  // the tail: refused for its sampling, which its predecessor is told
  start.mutable_sampling()->set_top_k(-1);
  start.mutable_predecessor()->set_incarnation(7);
  control.OnStart(start);
  EXPECT_EQ(edges.to.at(7)->dropped, std::vector<JobId>{1});
  EXPECT_TRUE(edges.to.at(8)->dropped.empty());

  // A neighbour of another epoch, or none that ever was one.
  for (const auto& [incarnation, epoch] : {std::pair<uint64_t, uint32_t>{7, 1}, {9, 0}}) {
    start.set_job(start.job() + 1);
    start.mutable_predecessor()->set_incarnation(incarnation);
    start.mutable_predecessor()->set_epoch(epoch);
    control.OnStart(start);
    EXPECT_EQ(ends.back().job(), start.job());
    EXPECT_EQ(ends.back().code(), static_cast<int>(absl::StatusCode::kUnavailable));
    EXPECT_EQ(ends.back().cause(), v1::JOB_CAUSE_PEER);
    EXPECT_THAT(ends.back().message(), HasSubstr("no edge to its predecessor"));
  }
  EXPECT_EQ(edges.to.at(7)->dropped.size(), 1u);
}

TEST_F(PrefillControlTest, TellsOnceThatADecodeWorkerIsOutOfReachAndThatItAnswersAgain) {
  auto owned = std::make_unique<UnreachableDecode>();
  UnreachableDecode& way = *owned;
  DecodePaths paths(std::move(owned));
  const PeerId decode{"decode", 9, {}, 1};
  const absl::Time begin = MonotonicNow();
  EXPECT_TRUE(absl::IsUnavailable(paths.Push(decode, {}, ConstBufferRef(), Event()).Wait()));
  std::vector<DecodePaths::State> changes = paths.TakeChanges(begin);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].decode, decode);
  EXPECT_TRUE(absl::IsUnavailable(changes[0].status));
  EXPECT_TRUE(paths.TakeChanges(begin + absl::Seconds(10)).empty()) << "asked, and still out of reach";
  way.reachable = true;
  EXPECT_TRUE(paths.TakeChanges(begin + absl::Seconds(20)).empty()) << "asked now";
  changes = paths.TakeChanges(begin + absl::Seconds(20));
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_TRUE(changes[0].status.ok());
  EXPECT_TRUE(paths.TakeChanges(begin + absl::Seconds(30)).empty());
}

// KV of the tokens before the first part is in the lease, and the head gets it from there.
TEST_F(PrefillControlTest, AJobBehindAPrefixTakesItFromItsLeaseOrIsRefused) {
  v1::StartJob start = Job(1);
  start.clear_bounds();
  for (const int bound : {5, 10}) start.add_bounds(bound);  // the tail has the ids of all
  control_.OnStart(start);
  const JobEnd refused = chain_.member(0).news.AwaitEnd(1);
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.cause, JobCause::kRouter);
  EXPECT_THAT(std::string(refused.status.message()), HasSubstr("bounds: KV of the 5 tokens before the first part"));
  start.set_job(2);
  start.mutable_lease()->set_number(3);
  start.mutable_decode()->set_name("d");
  control_.OnStart(start);
  const JobEnd end = chain_.member(0).news.AwaitEnd(2);
  EXPECT_EQ(end.status.code(), absl::StatusCode::kUnavailable) << "this control loads no prefixes";
  EXPECT_EQ(end.cause, JobCause::kDecode);
  start.set_job(3);
  start.set_interleave(true);
  control_.OnStart(start);
  EXPECT_EQ(chain_.member(0).news.AwaitEnd(3).status.code(), absl::StatusCode::kInvalidArgument);
}

TEST(JobFromProto, TakesTheScheduleOrAChain) {
  v1::StartJob start;
  for (const auto& [proto, schedule] :
       std::vector<std::pair<v1::Schedule, Schedule>>{{v1::SCHEDULE_UNSPECIFIED, Schedule::kKvr},
                                                      {v1::SCHEDULE_KVR, Schedule::kKvr},
                                                      {v1::SCHEDULE_KVR_EVEN, Schedule::kKvrEven},
                                                      {v1::SCHEDULE_SINGLE, Schedule::kSingle},
                                                      {v1::SCHEDULE_TSP, Schedule::kTsp},
                                                      {v1::SCHEDULE_TSP_CAUSAL, Schedule::kTspCausal}}) {
    start.set_schedule(proto);
    EXPECT_EQ(JobFromProto(start, absl::Now()).schedule, schedule) << proto;
  }
}

TEST(JobFromProto, IsTracedWhereATraceparentComes) {
  v1::StartJob start;
  EXPECT_EQ(JobFromProto(start, absl::Now()).spans, nullptr);
  start.set_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
  EXPECT_NE(JobFromProto(start, absl::Now()).spans, nullptr);
}

TEST(JobFromProto, TakesBiasesAndRules) {
  v1::StartJob start;
  EXPECT_TRUE(JobFromProto(start, absl::Now()).rules.bad_ids.empty());
  (*start.mutable_sampling()->mutable_logit_bias())[4] = -2.5f;
  start.mutable_rules()->set_min_tokens(3);
  start.mutable_rules()->add_end_ids(9);
  for (const int id : {5, 6}) start.mutable_rules()->add_bad_ids()->add_ids(id);
  const PrefillJob job = JobFromProto(start, absl::Now());
  ASSERT_EQ(job.sampling.logit_bias.size(), 1u);
  EXPECT_EQ(job.sampling.logit_bias[0].id, 4);
  EXPECT_EQ(job.sampling.logit_bias[0].bias, -2.5f);
  EXPECT_EQ(job.rules.min_tokens, 3);
  EXPECT_EQ(job.rules.end_ids, std::vector<int32_t>{9});
  EXPECT_EQ(job.rules.bad_ids, (std::vector<std::vector<int32_t>>{{5}, {6}}));
}

TEST(JobFromProto, TakesXTokensOrNone) {
  v1::StartJob start;
  EXPECT_EQ(JobFromProto(start, absl::Now()).x_tokens, 0);
  EXPECT_EQ(JobFromProto(start, absl::Now()).kv_from, 0);
  start.set_x_tokens(7);
  start.set_kv_from(4);
  EXPECT_EQ(JobFromProto(start, absl::Now()).x_tokens, 7);
  EXPECT_EQ(JobFromProto(start, absl::Now()).kv_from, 4);
}

TEST_F(PrefillControlTest, KvMayBeLeftOutOnlyWhereXIsHandedOff) {
  v1::StartJob start = Job(1);
  start.mutable_lease()->set_number(3);
  start.set_x_tokens(6);
  for (const int wrong : {-1, 7}) {
    start.set_kv_from(wrong);
    control_.OnStart(start);
    const JobEnd end = chain_.member(0).news.AwaitEnd(start.job());
    EXPECT_EQ(end.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(end.cause, JobCause::kRouter);
    EXPECT_THAT(std::string(end.status.message()), HasSubstr("kv_from: "));
    start.set_job(start.job() + 1);
  }
  start.set_kv_from(6);
  control_.OnStart(start);
  EXPECT_TRUE(chain_.member(0).news.AwaitDone(start.job()).ok());
  EXPECT_GT(chain_.handoff().Bytes(SliceKind::kKv), 0);
}

TEST_F(PrefillControlTest, XTokensMustBeOfThePrompt) {
  v1::StartJob start = Job(1);
  start.mutable_lease()->set_number(3);
  for (const int wrong : {-1, 11}) {
    start.set_x_tokens(wrong);
    control_.OnStart(start);
    const JobEnd end = chain_.member(0).news.AwaitEnd(start.job());
    EXPECT_EQ(end.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(end.cause, JobCause::kRouter);
    EXPECT_THAT(std::string(end.status.message()), HasSubstr("x_tokens: "));
    start.set_job(start.job() + 1);
  }
  start.set_x_tokens(10);
  control_.OnStart(start);
  EXPECT_TRUE(chain_.member(0).news.AwaitDone(start.job()).ok());
  EXPECT_GT(chain_.handoff().Bytes(SliceKind::kX), 0);
}

TEST_F(PrefillControlTest, ADeadlineMayHavePassed) {
  v1::StartJob late = Job(1);
  for (const int64_t deadline_ms : {int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    late.set_deadline_ms(deadline_ms);
    control_.OnStart(late);
    EXPECT_EQ(chain_.member(0).news.AwaitDone(late.job()).code(), absl::StatusCode::kDeadlineExceeded);
    late.set_job(late.job() + 1);
  }
  late.set_deadline_ms(0);  // none
  control_.OnStart(late);
  EXPECT_TRUE(chain_.member(0).news.AwaitDone(late.job()).ok());
}

}  // namespace
}  // namespace runahead
