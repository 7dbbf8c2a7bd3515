// Random arrivals, cancels and deaths of chains and all-gathers on overlapping segments: every job ends at every
// member, nothing is left behind, and what ends well is right. docs/architecture.md says why no wait can close a
// circle.
#include <gtest/gtest.h>

#include <random>

#include "tests/testing/chain_fixture.h"

namespace runahead {
namespace {

struct Planned {
  JobId job;
  int first;
  std::vector<int64_t> bounds;
  Schedule schedule;
  bool interleave = false;

  int64_t tokens() const { return bounds.back(); }
};

class ProtocolTest : public testing::TestWithParam<int> {};

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
  static const LoadedModel& loaded = *new LoadedModel(LoadForTest(WriteSynthetic(options, "protocol"), DType::kF32, 1));
  std::vector<int32_t> ids;
  for (int i = 0; i < kTokens; ++i) ids.push_back(i * 7 % 320);

  const bool kill = draw(3) == 0;
  TestChain chain(loaded, kWidth, kTokens, kMinLayerSlots, LoopbackNetwork::Delivery::kManual);
  std::vector<Planned> jobs;
  for (JobId job = 1; job <= 8; ++job) {
    const int parts = 1 + draw(kWidth);
    // Half of the jobs are chains; an all-gather keeps its workers in step, and its frames go both ways.
    const auto schedule = draw(2) == 0 ? Schedule::kKvr : draw(2) == 0 ? Schedule::kTsp : Schedule::kTspCausal;
    Planned planned{job, draw(kWidth - parts + 1), {0}, schedule};
    const int64_t tokens = parts == 1 && draw(3) > 0 ? kShort : kTokens;
    for (int part = 1; part < parts; ++part) {
      const int64_t room = kTokens - (parts - part) - planned.bounds.back();
      planned.bounds.push_back(planned.bounds.back() + 1 + draw(static_cast<int>(room)));
    }
    planned.bounds.push_back(tokens);
    planned.interleave = tokens == kShort && draw(4) > 0;
    jobs.push_back(planned);
  }

  // Each member gets its Starts in the same order, but when is up to chance; cancels come to all members at any time.
  std::vector<size_t> started(kWidth, 0);
  std::vector<bool> cancelled(jobs.size(), false);
  int dead = -1;
  const auto member_done = [&](const Planned& job, int part) {
    return chain.member(job.first + part).news.done(job.job);
  };
  const auto all_done = [&] {
    for (const Planned& job : jobs) {
      for (int part = 0; part + 1 < static_cast<int>(job.bounds.size()); ++part) {
        if (!member_done(job, part)) return false;
      }
    }
    return true;
  };
  const auto cancel = [&](const Planned& job) {
    for (int part = 0; part + 1 < static_cast<int>(job.bounds.size()); ++part) {
      chain.member(job.first + part).stage->Cancel(job.job, absl::CancelledError("cancelled"));
    }
  };
  while (!all_done()) {
    const int what = draw(20);
    if (what < 4) {
      const int at = draw(kWidth);
      if (started[at] < jobs.size()) {
        const Planned& job = jobs[started[at]++];
        const int part = at - job.first;
        if (part >= 0 && part + 1 < static_cast<int>(job.bounds.size())) {
          PrefillJob start =
              chain.JobOf(job.job, job.first, part, job.bounds, ids, {}, true, absl::InfiniteFuture(), job.schedule);
          start.interleave = job.interleave;
          chain.member(at).stage->Start(std::move(start));
        }
      }
    } else if (what == 4) {
      // As in the router, a cancel follows the job's Starts on every stream.
      const size_t index = static_cast<size_t>(draw(static_cast<int>(jobs.size())));
      bool everywhere = true;
      for (size_t at : started) everywhere = everywhere && at > index;
      if (everywhere && draw(4) == 0) {
        cancelled[index] = true;
        cancel(jobs[index]);
      }
    } else if (what == 5 && kill && dead < 0 && draw(10) == 0) {
      dead = draw(kWidth);
      chain.network().Kill(TestChain::Peer(dead));
    } else {
      const size_t pending = chain.network().pending();
      if (pending > 0) chain.network().Deliver(static_cast<size_t>(draw(static_cast<int>(pending))));
    }
    // The router cancels at all members what failed at one.
    for (size_t index = 0; index < jobs.size(); ++index) {
      const Planned& job = jobs[index];
      for (int part = 0; part + 1 < static_cast<int>(job.bounds.size()); ++part) {
        if (member_done(job, part) && !chain.member(job.first + part).news.AwaitDone(job.job).ok()) cancel(job);
      }
    }
  }

  static const WholeRun& long_alone = *new WholeRun(RunAlone(loaded, ids));
  static const WholeRun& short_alone = *new WholeRun(RunAlone(loaded, {ids.begin(), ids.begin() + kShort}));
  for (size_t index = 0; index < jobs.size(); ++index) {
    const Planned& job = jobs[index];
    const int parts = static_cast<int>(job.bounds.size()) - 1;
    const bool hit = dead >= job.first && dead < job.first + parts;
    for (int part = 0; part < parts; ++part) {
      const absl::Status done = chain.member(job.first + part).news.AwaitDone(job.job);
      EXPECT_TRUE(done.ok() || cancelled[index] || hit) << "job " << job.job << " part " << part << ": " << done;
    }
    if (cancelled[index] || hit) continue;
    const WholeRun& alone = job.tokens() == kShort ? short_alone : long_alone;
    WholeRun actual = alone;  // its logprobs: this job asked for none
    EXPECT_EQ(chain.member(job.first + parts - 1).news.AwaitFirstToken(job.job).id, alone.token.id);
    for (size_t layer = 0; layer < alone.kv.size(); ++layer) {
      actual.kv[layer] = chain.handoff().Layer(TestChain::Lease(job.job), static_cast<int64_t>(layer), job.tokens(),
                                               loaded.model->attention_shape().kv_row_bytes());
    }
    ExpectSameRun(actual, alone);
  }
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

INSTANTIATE_TEST_SUITE_P(Seeds, ProtocolTest, testing::Range(0, 150));

}  // namespace
}  // namespace runahead
