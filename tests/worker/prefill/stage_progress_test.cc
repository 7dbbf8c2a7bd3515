// What a stage's meter says of its thread and its jobs: who computes, who waits, for whom, and since when. Who waits
// for others is not judged to hang, however long.
#include <cstdint>
#include <string>
#include <vector>

#include "tests/testing/await_reading.h"
#include "tests/worker/prefill/stage_fixture.h"
#include "worker/prefill/layer_ring.h"

namespace runahead {
namespace {

constexpr absl::Duration kAnHour = absl::Hours(1);
constexpr int64_t kPrompt = 60;

class StageProgressTest : public StageTest {
 protected:
  using Reading = ProgressMeter::Reading;
  using Job = ProgressMeter::Job;

  static const Job* Find(const Reading& reading, JobId job) {
    for (const Job& one : reading.jobs) {
      if (one.job == job) return &one;
    }
    return nullptr;
  }
  // The job does that, its stage rests, and so it stays while an hour passes: by then it has done it for that long.
  static void ExpectRestsWith(ChainMember& member, JobId job, JobActivity does, const std::string& waits_for) {
    const auto holds = [&](const Reading& reading) {
      const Job* const found = Find(reading, job);
      return !reading.computing && found != nullptr && found->activity == does && found->waits_for == waits_for;
    };
    testing::AwaitReading(*member.progress, "the job waits for '" + waits_for + "'", holds);
    const uint64_t done = member.progress->Read().done;
    member.clock.Advance(kAnHour);
    const Reading reading = member.progress->Read();
    ASSERT_TRUE(holds(reading));
    EXPECT_EQ(Find(reading, job)->since, kAnHour);
    EXPECT_EQ(reading.done, done);
  }
  static void ExpectOver(ChainMember& member, JobId job) {
    testing::AwaitReading(*member.progress, "the job is over",
                          [&](const Reading& reading) { return !reading.computing && Find(reading, job) == nullptr; });
    EXPECT_EQ(member.news.AwaitDone(job), absl::OkStatus());
  }
  // Part `part` of a prompt on all members, from the first one on.
  PrefillJob Part(TestChain& chain, JobId job, int part, Schedule schedule = Schedule::kKvr) const {
    std::vector<int64_t> bounds;
    for (int64_t i = 0; i <= chain.width(); ++i) bounds.push_back(kPrompt * i / chain.width());
    PrefillJob made =
        chain.JobOf(job, 0, part, bounds, ids_, {}, /*with_lease=*/true, absl::InfiniteFuture(), schedule);
    if (part > 0) made.predecessor_name = TestChain::Peer(part - 1).address;
    return made;
  }
  // Of a worker alone.
  PrefillJob Whole(TestChain& chain, JobId job) const { return Part(chain, job, 0); }

  const std::vector<int32_t> ids_ = RandomIds(kPrompt, 320, 15);
};

TEST_F(StageProgressTest, WhoWaitsForKvOfItsPredecessorSaysSo) {
  TestChain chain(loaded_, 3, kPrompt);
  for (const int part : {2, 1}) {  // while the head has not begun
    chain.member(part).stage->Start(Part(chain, 1, part));
    ExpectRestsWith(chain.member(part), 1, JobActivity::kWaiting, TestChain::Peer(part - 1).address);
    EXPECT_EQ(Find(chain.member(part).progress->Read(), 1)->steps, 1u) << "its own KV of the first layer";
  }
  chain.member(0).stage->Start(Part(chain, 1, 0));
  for (int part = 0; part < chain.width(); ++part) ExpectOver(chain.member(part), 1);
}

// With this schedule the head waits, too.
TEST_F(StageProgressTest, WhoExchangesKvBothWaysWaitsForItsNeighbours) {
  TestChain chain(loaded_, 2, kPrompt);
  chain.member(0).stage->Start(Part(chain, 1, 0, Schedule::kTsp));
  ExpectRestsWith(chain.member(0), 1, JobActivity::kWaiting, "its neighbours");
  chain.member(1).stage->Start(Part(chain, 1, 1, Schedule::kTsp));
  for (int part = 0; part < chain.width(); ++part) ExpectOver(chain.member(part), 1);
}

TEST_F(StageProgressTest, WhoseLayerBuffersAreAllTakenWaitsForOne) {
  ASSERT_GT(layers(), kMinLayerSlots);
  TestChain chain(loaded_, 1, kPrompt, kMinLayerSlots);
  chain.handoff().Block();  // so no buffer is free again
  chain.member(0).stage->Start(Whole(chain, 1));
  ExpectRestsWith(chain.member(0), 1, JobActivity::kWaiting, "a layer buffer");
  chain.handoff().Unblock();
  ExpectOver(chain.member(0), 1);
}

TEST_F(StageProgressTest, WhoIsComputedAndNotTakenYetDeliversAndWhoFindsNoMemoryIsQueued) {
  TestChain chain(loaded_, 1, kPrompt);  // memory is for two
  chain.handoff().Block();
  for (const JobId job : {1, 2}) {
    chain.member(0).stage->Start(Whole(chain, job));
    ExpectRestsWith(chain.member(0), job, JobActivity::kDelivering, "");
  }
  chain.member(0).stage->Start(Whole(chain, 3));
  ExpectRestsWith(chain.member(0), 3, JobActivity::kQueued, "");
  EXPECT_EQ(Find(chain.member(0).progress->Read(), 2)->since, 2 * kAnHour);
  chain.handoff().Unblock();
  for (const JobId job : {1, 2, 3}) ExpectOver(chain.member(0), job);
}

// The device does not end what it was given.
TEST_F(StageProgressTest, WhoComputesSaysSoAndSinceWhen) {
  TestChain chain(loaded_, 1, kPrompt);
  ChainMember& worker = chain.member(0);
  worker.trace.HoldAt(TracePoint::kQkvBegin);
  worker.stage->Start(Whole(chain, 1));
  // Two layers are enqueued ahead of the one that does not end, then the thread waits for the device.
  constexpr uint64_t kSteps = 3;
  testing::AwaitReading(*worker.progress, "all is enqueued that may be", [](const Reading& reading) {
    const Job* const job = Find(reading, 1);
    return job != nullptr && job->steps == kSteps;
  });
  worker.clock.Advance(kAnHour);
  worker.stage->Start(Whole(chain, 2));
  worker.clock.Advance(kAnHour);
  const Reading reading = worker.progress->Read();
  EXPECT_TRUE(reading.computing);
  EXPECT_EQ(reading.since, 2 * kAnHour);
  EXPECT_EQ(reading.done, 0u);
  ASSERT_EQ(reading.jobs.size(), 2u);
  EXPECT_EQ(reading.jobs[0].activity, JobActivity::kComputing);
  EXPECT_EQ(reading.jobs[0].waits_for, "");
  EXPECT_EQ(reading.jobs[0].steps, kSteps);
  EXPECT_EQ(reading.jobs[0].since, 2 * kAnHour);
  EXPECT_EQ(reading.jobs[1].activity, JobActivity::kQueued);
  EXPECT_EQ(reading.jobs[1].steps, 0u);
  EXPECT_EQ(reading.jobs[1].since, kAnHour);
  worker.trace.Release();
  for (const JobId job : {1, 2}) ExpectOver(worker, job);
  EXPECT_GE(worker.progress->Read().done, static_cast<uint64_t>(2 * layers())) << "of both";
}

}  // namespace
}  // namespace runahead
