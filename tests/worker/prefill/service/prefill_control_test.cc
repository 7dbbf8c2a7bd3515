#include "worker/prefill/service/prefill_control.h"

#include <cmath>
#include <functional>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/chain_fixture.h"
#include "worker/prefill/service/job_from_proto.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

// A control whose jobs run on a chain of one. What the control refuses is told to `reports_`, what the stage says to
// the chain's own board.
class PrefillControlTest : public ::testing::Test {
 protected:
  PrefillControlTest()
      : loaded_(LoadForTest(WriteSynthetic(SyntheticModel(), "prefill_control"), DType::kF32, 1)),
        chain_(loaded_, 1, 30),
        registry_("none"),
        metrics_(registry_),
        control_(*chain_.member(0).edges, HandoffRoute::kLink, metrics_, registry_) {
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
       [](v1::SamplingParams& s) { s.set_logprobs(std::numeric_limits<int32_t>::max()); }}};
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
  control_.OnStart(Job(++job));
  EXPECT_TRUE(chain_.member(0).news.AwaitDone(job).ok());
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
  PrefillControl control(edges, HandoffRoute::kLink, metrics_, registry_);
  v1::FormLine line;
  line.mutable_successor()->set_link_address("there");
  line.mutable_successor()->set_incarnation(7);
  line.mutable_successor()->set_device_link("nccl");
  control.OnFormLine(line);
  ASSERT_EQ(edges.asked.size(), 1u);
  EXPECT_EQ(edges.asked[0].address, "there");
  EXPECT_EQ(edges.asked[0].incarnation, 7u);
  EXPECT_EQ(edges.asked[0].device_link, "nccl");
}

TEST(JobFromProto, KnowsWhichSchedulesAreNoChain) {
  v1::StartJob start;
  for (const auto& [proto, schedule] :
       std::vector<std::pair<v1::Schedule, PrefillSchedule>>{{v1::SCHEDULE_UNSPECIFIED, PrefillSchedule::kChain},
                                                             {v1::SCHEDULE_KVR, PrefillSchedule::kChain},
                                                             {v1::SCHEDULE_KVR_EVEN, PrefillSchedule::kChain},
                                                             {v1::SCHEDULE_SINGLE, PrefillSchedule::kChain},
                                                             {v1::SCHEDULE_TSP, PrefillSchedule::kTsp},
                                                             {v1::SCHEDULE_TSP_CAUSAL, PrefillSchedule::kTspCausal}}) {
    start.set_schedule(proto);
    EXPECT_EQ(JobFromProto(start, HandoffRoute::kLink, absl::Now()).schedule, schedule) << proto;
  }
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
