// Workers and paths that come and go: clear statuses, nothing left behind, the next request works.
#include "absl/algorithm/container.h"
#include "gmock/gmock.h"
#include "server/rpc/status.h"
#include "tests/server/router/faults_fixture.h"

namespace runahead {
namespace {

using testing::Call;
using testing::FakeBehaviour;
using testing::Got;
using ::testing::HasSubstr;

using WorkerFaultsTest = testing::FaultsFixture;

TEST_F(WorkerFaultsTest, APrefillWorkerDiesInMidPrefillAndComesBack) {
  Start();
  HoldPrefill(false, false);
  const uint64_t former =
      prefill_[0]->AwaitLine([](const v1::FormLine& line) { return line.has_successor(); }).successor().incarnation();
  Call call(*stub_, Chain());
  for (auto& worker : prefill_) worker->AwaitStarts(1);
  prefill_[0]->Change([](FakeBehaviour& b) { b.done = true; });  // from the next attempt on
  Restart(prefill_[1], Able("prefill-1", v1::WORKER_ROLE_PREFILL));
  const Got got = call.Finish();
  EXPECT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.finished().failovers(), 1);
  prefill_[0]->AwaitCancel(Job());
  // All who may have links to it are told, decode workers too.
  const auto told = [former](const v1::FormLine& line) {
    return absl::c_any_of(line.lost(), [&](const v1::WorkerLife& lost) { return lost.incarnation() == former; });
  };
  prefill_[0]->AwaitLine(told);
  decode_[0]->AwaitLine(told);
  // The neighbour hears of the new incarnation, and the chain works again.
  const uint64_t incarnation =
      prefill_[0]->AwaitLine([](const v1::FormLine& line) { return line.has_successor(); }).successor().incarnation();
  EXPECT_NE(incarnation, 0u);
  prefill_[1]->AwaitLine([](const v1::FormLine& line) { return line.has_predecessor(); });
  ExpectAllFreeAndWorking();
}

TEST_F(WorkerFaultsTest, AnEdgeThatBrokeIsLeftOutAndUsedAgainInItsNextGeneration) {
  Start({.absence_timeout = absl::ZeroDuration()});
  const auto has_successor = [](const v1::FormLine& line) { return line.has_successor(); };
  const v1::PeerAddress successor = prefill_[0]->AwaitLine(has_successor).successor();
  EXPECT_EQ(successor.generation(), 1u);
  v1::PathState state;
  state.mutable_peer()->set_incarnation(successor.incarnation());
  state.mutable_peer()->set_epoch(successor.epoch());
  state.set_generation(1);
  state.set_condition(v1::PATH_CONDITION_BROKEN);
  state.set_message("cut");
  const auto edges_are = [this](int opening, int up, int broken) {
    return MetricBecomes("runahead_edges{state=\"opening\"}", opening) &&
           MetricBecomes("runahead_edges{state=\"up\"}", up) &&
           MetricBecomes("runahead_edges{state=\"broken\"}", broken);
  };
  EXPECT_TRUE(edges_are(1, 0, 0)) << "no end has said anything";
  prefill_[0]->SendPath(state);
  // Both ends are told of the next generation; until both are up no chain crosses the edge.
  const auto remade = [](const v1::FormLine& line) {
    return line.successor().generation() == 2 || line.predecessor().generation() == 2;
  };
  prefill_[0]->AwaitLine(remade);
  const v1::PeerAddress predecessor = prefill_[1]->AwaitLine(remade).predecessor();
  ASSERT_TRUE(MetricBecomes("runahead_broken_paths{kind=\"edge\"}", 1));
  const Got refused = Generate(Chain());
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(refused.status.message(), HasSubstr("edge to the next is broken"));
  EXPECT_TRUE(Generate(Ids(40, 5)).status.ok()) << "one worker takes it";
  state.set_generation(2);
  state.set_condition(v1::PATH_CONDITION_UP);
  prefill_[0]->SendPath(state);
  state.mutable_peer()->set_incarnation(predecessor.incarnation());
  state.mutable_peer()->set_epoch(predecessor.epoch());
  prefill_[1]->SendPath(state);
  ASSERT_TRUE(MetricBecomes("runahead_broken_paths{kind=\"edge\"}", 0)) << "both reports were taken";
  EXPECT_TRUE(edges_are(0, 1, 0));
  ExpectAllFreeAndWorking();
}

TEST_F(WorkerFaultsTest, ADecodeWorkerThatAMemberCannotReachIsNotTaken) {
  Start({.decode = 2});
  const auto none_reaches = [this](size_t decode, v1::PathCondition condition) {
    for (auto& worker : prefill_) {
      v1::PathState state;
      state.mutable_peer()->set_incarnation(decode_[decode]->incarnation());
      state.set_condition(condition);
      worker->SendPath(state);
    }
  };
  none_reaches(0, v1::PATH_CONDITION_BROKEN);
  ASSERT_TRUE(MetricBecomes("runahead_broken_paths{kind=\"handoff\"}", 2));
  for (int i = 0; i < 4; ++i) {
    const Got got = Generate(Ids(40, 5));
    ASSERT_TRUE(got.status.ok()) << got.status;
    EXPECT_EQ(got.started().plan().decode_worker(), "decode-1");
  }
  none_reaches(0, v1::PATH_CONDITION_UP);
  ASSERT_TRUE(MetricBecomes("runahead_broken_paths{kind=\"handoff\"}", 0));
  EXPECT_EQ(Generate(Ids(40, 5)).started().plan().decode_worker(), "decode-0");
}

TEST_F(WorkerFaultsTest, ADeadWorkerSplitsTheLine) {
  Start({.prefill = 3, .absence_timeout = absl::ZeroDuration()});
  prefill_[1].reset();
  AwaitReady(2, 1);
  prefill_[0]->AwaitLine([](const v1::FormLine& line) { return !line.has_successor(); });
  prefill_[2]->AwaitLine([](const v1::FormLine& line) { return !line.has_predecessor(); });
  const Got single = Generate(Ids(1000, 2));
  EXPECT_TRUE(single.status.ok()) << single.status;
  EXPECT_EQ(single.started().plan().workers_size(), 1);
  const Got wide = Generate(Chain());
  EXPECT_EQ(wide.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(wide.status.message(), HasSubstr("no 2 prefill workers that stand side by side"));
  prefill_.erase(prefill_.begin() + 1);
}

TEST_F(WorkerFaultsTest, ADecodeWorkerDiesWhileThePromptIsComputed) {
  Start();
  HoldPrefill(false, false);
  Call call(*stub_, Chain());
  const uint64_t job = Job();
  prefill_[1]->AwaitStarts(1);
  const uint64_t former = decode_[0]->incarnation();
  HoldPrefill(true, true);  // the next attempt
  Restart(decode_[0], Able("decode-0", v1::WORKER_ROLE_DECODE));
  prefill_[0]->AwaitCancel(job);
  const Got got = call.Finish();
  EXPECT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.ids().size(), 50u);
  const std::vector<v1::StartJob> starts = prefill_[0]->AwaitStarts(2);
  EXPECT_EQ(starts.at(0).lease().incarnation(), former);
  EXPECT_EQ(starts.at(1).lease().incarnation(), decode_[0]->incarnation()) << "nothing of the first attempt is used";
  ExpectAllFreeAndWorking();
}

TEST_F(WorkerFaultsTest, ADecodeWorkerDiesInMidDecode) {
  Start();
  decode_[0]->Change([](FakeBehaviour& b) { b.decode_until = 3; });
  Call call(*stub_, Chain());
  decode_[0]->AwaitDecodes(1);
  Restart(decode_[0], Able("decode-0", v1::WORKER_ROLE_DECODE));
  const Got got = call.Finish();
  EXPECT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.ids().size(), 50u);
  EXPECT_GE(got.finished().failovers(), 1) << "its call may end before its control stream: it is asked once more then";
  ExpectAllFreeAndWorking();
}

TEST_F(WorkerFaultsTest, ABrokenControlStreamIsALostWorkerAndIsJoinedAgain) {
  Start();
  HoldPrefill(false, false);
  Call call(*stub_, Chain());
  prefill_[0]->AwaitStarts(1);
  prefill_[1]->AwaitStarts(1);
  HoldPrefill(true, true);
  prefill_[0]->DropStream();
  EXPECT_TRUE(call.Finish().status.ok());
  ExpectAllFreeAndWorking();
}

TEST_F(WorkerFaultsTest, WithoutWorkersItSaysWhichAreMissing) {
  Start({.prefill = 1, .absence_timeout = absl::ZeroDuration()});
  prefill_.clear();
  AwaitReady(0, 1);
  const Got no_prefill = Generate(Ids(5, 5));
  EXPECT_EQ(no_prefill.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(no_prefill.status.message(), HasSubstr("no prefill worker is ready: 127.0.0.1:"));
  EXPECT_TRUE(RetryAfter(no_prefill.status).has_value());
  EXPECT_EQ(Metric("runahead_admission_rejections_total{reason=\"no_workers\"}"), 1);
  EXPECT_TRUE(MetricBecomes("runahead_workers{role=\"prefill\",state=\"lost\"}", 1));
}

TEST_F(WorkerFaultsTest, AWorkerThatDoesNotAgreeIsRefusedByName) {
  int count = 0;
  Start({.absence_timeout = absl::ZeroDuration(), .able = [&count](v1::Capabilities& able) {
           if (count++ == 1) able.set_model_fingerprint("another");
         }});
  AwaitReady(1, 1);
  ASSERT_TRUE(MetricBecomes("runahead_workers{role=\"prefill\",state=\"refused\"}", 1));
  const Got got = Generate(Chain());
  EXPECT_EQ(got.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(got.status.message(), HasSubstr("worker prefill-1 does not agree: model_fingerprint is another"));
  EXPECT_TRUE(Generate(Ids(5, 2)).status.ok());
}

TEST_F(WorkerFaultsTest, TheConfiguredDtypeIsWantedWhateverMostWorkersComputeIn) {
  int count = 0;
  Start({.prefill = 3, .dtype = "bf16", .able = [&count](v1::Capabilities& able) {
           if (count++ % 3 == 0) able.set_compute_dtype("bf16");
         }});
  AwaitReady(1, 1);
  ASSERT_TRUE(MetricBecomes("runahead_workers{role=\"prefill\",state=\"refused\"}", 2));
  EXPECT_TRUE(Generate(Ids(5, 2)).status.ok());
  EXPECT_EQ(fleet_->capabilities().compute_dtype(), "bf16");
}

}  // namespace
}  // namespace runahead
