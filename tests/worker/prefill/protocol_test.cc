// Random arrivals, cancels and deaths of chains and all-gathers on overlapping segments: every job ends at every
// member, nothing is left behind, and what ends well is right. docs/architecture.md says why no wait can close a
// circle.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <random>
#include <thread>

#include "tests/testing/chain_fixture.h"
#include "tests/testing/windowed_model.h"

namespace runahead {
namespace {

// Time is counted in events: a Start given to a member, or a frame delivered. (A loop's turns would be no measure: it
// takes thousands while one layer is computed, and everything would be cancelled before it came to anything.)
constexpr int kNever = std::numeric_limits<int>::max();
constexpr int kMostEvents = 160;  // about as many as there are

constexpr int kSeeds = 150;

struct Planned {
  JobId job;
  int first;
  std::vector<int64_t> bounds;
  Schedule schedule;
  bool interleave = false;
  int cancel_at = kNever;  // an event's number

  int parts() const { return static_cast<int>(bounds.size()) - 1; }
  int64_t tokens() const { return bounds.back(); }
};

class ProtocolTest : public ::testing::TestWithParam<int> {
 protected:
  // How the jobs ended, so that the walk is seen to get where it should.
  static void TearDownTestSuite() {
    if (runs_ < kSeeds) return;
    std::printf(
        "%d jobs ended well and were compared (%d of them interleaved), %d were cancelled, %d were hit by a death\n",
        compared_, interleaved_, ended_by_cancel_, ended_by_death_);
    EXPECT_GT(compared_, 4 * kSeeds);
    EXPECT_GT(ended_by_cancel_, kSeeds / 2);
    EXPECT_GT(ended_by_death_, kSeeds / 4);
    EXPECT_GT(interleaved_, kSeeds / 2);
  }
  static inline int runs_ = 0, compared_ = 0, interleaved_ = 0, ended_by_cancel_ = 0, ended_by_death_ = 0;
};

TEST_P(ProtocolTest, EveryJobEndsAndNothingIsLeft) {
  constexpr int kWidth = 4;
  // Of the long prompts some parts are long enough for the short ones to run between their layers.
  constexpr int64_t kTokens = 400, kShort = 7;
  std::mt19937 random(GetParam());
  const auto draw = [&](int n) { return static_cast<int>(random() % n); };
  SyntheticModel options;
  options.layers = 6;  // more than a job's ring holds: it comes to a stop until frames are delivered
  options.hidden = 32;
  options.heads = 2;
  options.kv_heads = 1;
  options.ffn = 32;
  static const LoadedModel& plain = *new LoadedModel(LoadForTest(WriteSynthetic(options, "protocol"), DType::kF32, 1));
  // Whose parts wait less for each other, in some layers for nobody.
  static const LoadedModel& windowed =
      *new LoadedModel{plain.file, plain.device,
                       std::make_shared<WindowedModel>(plain.model, std::vector<int64_t>{30, 1, 0, 200, 1, 8})};
  const bool windows = draw(3) == 0;
  const LoadedModel& loaded = windows ? windowed : plain;
  std::vector<int32_t> ids;
  for (int i = 0; i < kTokens; ++i) ids.push_back(i * 7 % 320);

  const int kill_at = draw(3) == 0 ? draw(kMostEvents) : kNever;
  TestChain chain(loaded, kWidth, kTokens, kMinLayerSlots, LoopbackNetwork::Delivery::kManual);
  std::vector<Planned> jobs;
  for (JobId job = 1; job <= 10; ++job) {
    // Many are short ones for the bubbles of the others.
    const bool short_one = draw(2) == 0;
    const int parts = short_one ? 1 : 1 + draw(kWidth);
    // Half of the jobs are chains; an all-gather keeps its workers in step, and its frames go both ways.
    const auto schedule = draw(2) == 0 ? Schedule::kKvr : draw(2) == 0 ? Schedule::kTsp : Schedule::kTspCausal;
    Planned planned{job, draw(kWidth - parts + 1), {0}, schedule};
    const int64_t tokens = short_one ? kShort : kTokens;
    for (int part = 1; part < parts; ++part) {
      const int64_t room = kTokens - (parts - part) - planned.bounds.back();
      planned.bounds.push_back(planned.bounds.back() + 1 + draw(static_cast<int>(room)));
    }
    planned.bounds.push_back(tokens);
    planned.interleave = short_one && draw(4) > 0;
    if (draw(4) == 0) planned.cancel_at = draw(kMostEvents);
    jobs.push_back(planned);
  }

  // Each member gets its Starts in the same order, but when is up to chance; cancels come to all members at any time.
  std::vector<size_t> started(kWidth, 0);
  std::vector<bool> cancelled(jobs.size(), false);
  int dead = -1, events = 0;
  const auto member_done = [&](const Planned& job, int part) {
    return chain.member(job.first + part).news.done(job.job);
  };
  const auto all_done = [&] {
    for (const Planned& job : jobs) {
      for (int part = 0; part < job.parts(); ++part) {
        if (!member_done(job, part)) return false;
      }
    }
    return true;
  };
  const auto cancel = [&](const Planned& job) {
    for (int part = 0; part < job.parts(); ++part) {
      chain.member(job.first + part).stage->Cancel(job.job, absl::CancelledError("cancelled"));
    }
  };
  while (!all_done()) {
    if (draw(5) == 0) {
      const int at = draw(kWidth);
      if (started[at] < jobs.size()) {
        const Planned& job = jobs[started[at]++];
        const int part = at - job.first;
        if (part >= 0 && part < job.parts()) {
          PrefillJob start = chain.JobOf(job.job, job.first, part, job.bounds, ids, EveryLogprob(loaded), true,
                                         absl::InfiniteFuture(), job.schedule);
          start.interleave = job.interleave;
          chain.member(at).stage->Start(std::move(start));
          ++events;
        }
      }
    } else if (const size_t pending = chain.network().pending(); pending > 0) {
      chain.network().Deliver(static_cast<size_t>(draw(static_cast<int>(pending))));
      ++events;
    } else {
      std::this_thread::yield();  // they compute
    }
    for (size_t index = 0; index < jobs.size(); ++index) {
      if (cancelled[index] || events < jobs[index].cancel_at) continue;
      // As in the router, a cancel follows the job's Starts on every stream.
      if (std::any_of(started.begin(), started.end(), [&](size_t at) { return at <= index; })) continue;
      cancelled[index] = true;
      cancel(jobs[index]);
    }
    if (dead < 0 && events >= kill_at) {
      dead = draw(kWidth);
      chain.network().Kill(TestChain::Peer(dead));
    }
    // The router cancels at all members what failed at one.
    for (size_t index = 0; index < jobs.size(); ++index) {
      const Planned& job = jobs[index];
      for (int part = 0; part < job.parts(); ++part) {
        if (member_done(job, part) && !chain.member(job.first + part).news.AwaitDone(job.job).ok()) cancel(job);
      }
    }
  }

  static const ExpectedRun& reference = *new ExpectedRun(ReferenceRun(plain, ids));
  static const ExpectedRun& long_windowed = *new ExpectedRun(PlainRun(windowed, ids));
  static const ExpectedRun& short_windowed = *new ExpectedRun(PlainRun(windowed, {ids.begin(), ids.begin() + kShort}));
  const auto expected = [&](int64_t tokens) {
    return !windows ? reference.First(tokens) : tokens == kShort ? short_windowed : long_windowed;
  };
  for (size_t index = 0; index < jobs.size(); ++index) {
    const Planned& job = jobs[index];
    const bool hit = dead >= job.first && dead < job.first + job.parts();
    bool well = true;
    for (int part = 0; part < job.parts(); ++part) {
      const absl::Status done = chain.member(job.first + part).news.AwaitDone(job.job);
      EXPECT_TRUE(done.ok() || cancelled[index] || hit) << "job " << job.job << " part " << part << ": " << done;
      well = well && done.ok();
    }
    ++(well ? compared_ : cancelled[index] ? ended_by_cancel_ : ended_by_death_);
    // Also one that a cancel or a death came too late for.
    if (well && chain.member(job.first).news.times(job.job).interleaved) ++interleaved_;
    if (well) ExpectRun(AwaitWhole(loaded, chain, job.job, job.first, job.bounds), expected(job.tokens()));
  }
  ++runs_;
  chain.network().DeliverAll();
  for (int i = 0; i < kWidth; ++i) {
    EXPECT_EQ(chain.member(i).stage->unfinished_jobs(), 0) << i;
    EXPECT_EQ(chain.member(i).memory, 0) << i;
  }
  // Nor at the neighbours of a member that died, nor on edges that it was not at.
  EXPECT_EQ(chain.live_edge_jobs(), 0u) << "dead: " << dead;
  for (int i = 0; i + 1 < kWidth; ++i) {
    const bool cut = dead == i || dead == i + 1;
    EXPECT_EQ(chain.member(i).successor->Health().ok(), !cut) << i;
    EXPECT_EQ(chain.member(i + 1).predecessor->Health().ok(), !cut) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ProtocolTest, ::testing::Range(0, kSeeds));

}  // namespace
}  // namespace runahead
