// Random arrivals, cancels, deaths and broken control streams of chains and all-gathers on overlapping segments: every
// job ends at every member, nothing is left behind, every order is carried out once and in its place, and what ends
// well is right. docs/architecture.md says why no wait can close a circle.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <thread>

#include "absl/strings/numbers.h"
#include "tests/testing/chain_fixture.h"
#include "tests/testing/control_model.h"
#include "tests/testing/windowed_model.h"

namespace runahead {
namespace {

// Time is counted in events: a Start given to a member, or a frame delivered. (A loop's turns would be no measure: it
// takes thousands while one layer is computed, and everything would be cancelled before it came to anything.)
constexpr int kNever = std::numeric_limits<int>::max();
constexpr int kMostEvents = 160;  // about as many as there are

// RUNAHEAD_PROTOCOL_SEEDS=1500 walks ten times as many.
constexpr int kUsualSeeds = 150;
int Seeds() {
  const char* const given = std::getenv("RUNAHEAD_PROTOCOL_SEEDS");
  int seeds = 0;
  return given != nullptr && absl::SimpleAtoi(given, &seeds) && seeds > 0 ? seeds : kUsualSeeds;
}
const int kSeeds = Seeds();

struct Planned {
  JobId job;
  int first;
  std::vector<int64_t> bounds;
  Schedule schedule;
  bool interleave = false;
  // Any, with which many are borne and some are not.
  double expected_s = 0, allowance_s = 0;
  int cancel_at = kNever;  // an event's number
  // As the router knows.
  bool ordered = false, cancelled = false;
  std::vector<bool> ended = {};  // by part

  int parts() const { return static_cast<int>(bounds.size()) - 1; }
  int64_t tokens() const { return bounds.back(); }
};

// What the router orders of a member, and what it hears of it.
struct Order {
  size_t job;  // its index
  bool cancel;
  friend bool operator==(const Order&, const Order&) = default;
};
struct JobEnded {
  size_t job;
};

// A control stream as the walk drives it.
struct Control {
  explicit Control(uint64_t worker) : stream(worker) {}
  testing::ControlModel<Order, JobEnded> stream;
  std::vector<Order> written, carried_out;
  std::vector<bool> has_begun, has_told;  // by job
  int resume_at = kNever;                 // an event's number
  int turns_cut = 0;
};

class ProtocolTest : public ::testing::TestWithParam<int> {
 protected:
  // How the jobs ended, so that the walk is seen to get where it should.
  static void TearDownTestSuite() {
    if (runs_ < kSeeds) return;
    std::printf(
        "%d jobs ended well and were compared (%d of them interleaved, %d overtook before they began), %d were "
        "cancelled, %d were hit by a death; %d control streams broke, with %d messages on their way, and were "
        "resumed\n",
        compared_, interleaved_, overtook_, ended_by_cancel_, ended_by_death_, cuts_, lost_on_way_);
    // Threads decide how many: each kind has to be among them.
    EXPECT_GT(compared_, kSeeds);
    EXPECT_GT(ended_by_cancel_, kSeeds / 10);
    EXPECT_GT(ended_by_death_, kSeeds / 10);
    EXPECT_GT(interleaved_, 0);
    EXPECT_GT(overtook_, 0);
    EXPECT_GT(cuts_, kSeeds);
    EXPECT_GT(lost_on_way_, kSeeds);
  }
  static inline int runs_ = 0, compared_ = 0, interleaved_ = 0, overtook_ = 0, ended_by_cancel_ = 0,
                    ended_by_death_ = 0;
  static inline int cuts_ = 0, lost_on_way_ = 0;
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
    // A long one finds no memory between layers, and overtakes only what has not begun.
    planned.interleave = parts == 1 && draw(4) > 0;
    planned.expected_s = (short_one ? 1 : 20) + draw(9);
    planned.allowance_s = draw(4) * 20;
    if (draw(4) == 0) planned.cancel_at = draw(kMostEvents);
    jobs.push_back(planned);
  }

  // The router's orders stand in the same order on every control stream; when each arrives is up to chance, and so is
  // when a stream breaks and for how long.
  std::vector<Control> controls;
  for (int at = 0; at < kWidth; ++at) {
    controls.emplace_back(static_cast<uint64_t>(at) + 1);
    controls.back().has_begun.resize(jobs.size());
    controls.back().has_told.resize(jobs.size());
  }
  std::vector<std::pair<int, int>> cuts;  // an event's number, and whose stream
  for (int cut = draw(7); cut > 0; --cut) cuts.emplace_back(draw(kMostEvents), draw(kWidth));
  size_t next = 0;  // the job that is ordered next
  int dead = -1, events = 0;
  const auto member_done = [&](const Planned& job, int part) {
    return chain.member(job.first + part).news.done(job.job);
  };
  const auto touches = [](const Planned& job, int at) { return at >= job.first && at < job.first + job.parts(); };
  const auto write = [&](int at, Order order) {
    controls[at].written.push_back(order);
    controls[at].stream.Write(order);
  };
  const auto cancel = [&](size_t index) {
    Planned& job = jobs[index];
    if (std::exchange(job.cancelled, true)) return;
    for (int part = 0; part < job.parts(); ++part) {
      if (!job.ended[part]) write(job.first + part, {index, true});
    }
  };
  const auto carry_out = [&](int at, const Order& order) {
    controls[at].carried_out.push_back(order);
    const Planned& job = jobs[order.job];
    if (order.cancel) return chain.member(at).stage->Cancel(job.job, absl::CancelledError("cancelled"));
    PrefillJob start = chain.JobOf(job.job, job.first, at - job.first, job.bounds, ids, EveryLogprob(loaded), true,
                                   absl::InfiniteFuture(), job.schedule);
    start.interleave = job.interleave;
    start.expected_s = job.expected_s;
    start.allowance_s = job.allowance_s;
    chain.member(at).stage->Start(std::move(start));
    controls[at].has_begun[order.job] = true;
  };
  const auto hear = [&](int at, const JobEnded& report) {
    Planned& job = jobs[report.job];
    job.ended[at - job.first] = true;
    // The router cancels at all members what failed at one.
    if (!chain.member(at).news.AwaitDone(job.job).ok()) cancel(report.job);
  };
  // The epoch ends at the member, and the router has given it up.
  const auto kill = [&](int at) {
    if (controls[at].stream.open()) controls[at].stream.Cut();
    controls[at].stream.End();
    chain.network().Kill(TestChain::Peer(at));
    for (size_t index = 0; index < jobs.size(); ++index) {
      Planned& job = jobs[index];
      if (controls[at].has_begun[index])
        chain.member(at).stage->Cancel(job.job, absl::CancelledError("its epoch ended"));
      if (!job.ordered || !touches(job, at) || job.ended[at - job.first]) continue;
      job.ended[at - job.first] = true;
      cancel(index);
    }
  };
  const auto all_done = [&] {
    for (size_t index = 0; index < jobs.size(); ++index) {
      const Planned& job = jobs[index];
      if (dead >= 0 && !job.ordered && touches(job, dead)) continue;  // it never will be
      if (!job.ordered || std::count(job.ended.begin(), job.ended.end(), false) > 0) return false;
      for (int part = 0; part < job.parts(); ++part) {
        if (controls[job.first + part].has_begun[index] && !member_done(job, part)) return false;
      }
    }
    return true;
  };
  const auto order_next = [&] {
    Planned& job = jobs[next];
    if (dead >= 0 && touches(job, dead)) return void(++next);
    for (int part = 0; part < job.parts(); ++part) {
      if (!controls[job.first + part].stream.open()) return;  // no new Start across a stream that is being resumed
    }
    for (int part = 0; part < job.parts(); ++part) write(job.first + part, {next, false});
    job.ended.resize(job.parts());
    job.ordered = true;
    ++next;
    ++events;
  };
  while (!all_done()) {
    Control& control = controls[draw(kWidth)];
    const int at = static_cast<int>(&control - controls.data());
    const int what = draw(8);
    if (what == 0 && next < jobs.size()) {
      order_next();
    } else if (what == 1 && control.stream.open()) {
      if (const auto order = control.stream.OrderArrives()) {
        carry_out(at, *order);
        ++events;
      }
    } else if (what == 2 && control.stream.open()) {
      if (const auto report = control.stream.ReportArrives()) {
        hear(at, *report);
        ++events;
      }
    } else if (what == 3 && control.stream.open()) {
      control.stream.Acknowledge();
    } else if (const size_t pending = chain.network().pending(); pending > 0) {
      chain.network().Deliver(static_cast<size_t>(draw(static_cast<int>(pending))));
      ++events;
    } else {
      std::this_thread::yield();  // they compute
    }
    for (size_t index = 0; index < jobs.size(); ++index) {
      const Planned& job = jobs[index];
      if (job.ordered && events >= job.cancel_at) cancel(index);
      for (int part = 0; part < job.parts(); ++part) {
        Control& member = controls[job.first + part];
        if (job.first + part == dead || !member.has_begun[index] || member.has_told[index]) continue;
        if (!member_done(job, part)) continue;
        member.has_told[index] = true;
        member.stream.Tell({index});
      }
    }
    for (auto& [event, of] : cuts) {
      if (events < event || of == dead || !controls[of].stream.open()) continue;
      event = kNever;
      ++cuts_;
      lost_on_way_ += static_cast<int>(controls[of].stream.on_way());
      controls[of].stream.Cut();
      controls[of].resume_at = events + draw(40);
      controls[of].turns_cut = 0;
    }
    for (int of = 0; of < kWidth; ++of) {
      if (of == dead || controls[of].stream.open()) continue;
      // Nothing may happen without it: then its turn comes all the same.
      if (events >= controls[of].resume_at || ++controls[of].turns_cut > 2000) {
        controls[of].stream.Resume(/*stale=*/draw(2) == 0);
      }
    }
    if (dead < 0 && events >= kill_at) {
      dead = draw(kWidth);
      kill(dead);
    }
  }
  for (int at = 0; at < kWidth; ++at) {
    std::vector<Order> expected = controls[at].written;
    if (at == dead) expected.resize(controls[at].carried_out.size());
    // A cancel that its job's end overtook may be on its way still.
    while (controls[at].carried_out.size() < expected.size() && at != dead) {
      if (!controls[at].stream.open()) controls[at].stream.Resume(/*stale=*/false);
      if (const auto order = controls[at].stream.OrderArrives()) carry_out(at, *order);
    }
    EXPECT_EQ(controls[at].carried_out, expected) << "member " << at;
  }

  // One that its member was given before began after it.
  const auto overtook = [&](size_t index) {
    const Planned& job = jobs[index];
    KeepingTrace& trace = chain.member(job.first).trace;
    const auto begin = [&](JobId id) { return trace.Await(id, 0, TracePoint::kQkvBegin); };
    for (const Order& order : controls[job.first].carried_out) {
      if (order.job == index) break;
      const JobId before = jobs[order.job].job;
      if (!trace.Has(before, 0, TracePoint::kQkvBegin)) continue;
      if (begin(before) > begin(job.job)) return true;
    }
    return false;
  };
  static const ExpectedRun& reference = *new ExpectedRun(ReferenceRun(plain, ids));
  static const ExpectedRun& long_windowed = *new ExpectedRun(PlainRun(windowed, ids));
  static const ExpectedRun& short_windowed = *new ExpectedRun(PlainRun(windowed, {ids.begin(), ids.begin() + kShort}));
  const auto expected = [&](int64_t tokens) {
    return !windows ? reference.First(tokens) : tokens == kShort ? short_windowed : long_windowed;
  };
  for (size_t index = 0; index < jobs.size(); ++index) {
    const Planned& job = jobs[index];
    const bool hit = touches(job, dead);
    bool well = job.ordered;
    for (int part = 0; part < job.parts(); ++part) {
      if (!controls[job.first + part].has_begun[index]) {
        EXPECT_TRUE(hit) << "job " << job.job << " never began at part " << part;
        well = false;
        continue;
      }
      const absl::Status done = chain.member(job.first + part).news.AwaitDone(job.job);
      EXPECT_TRUE(done.ok() || job.cancelled || hit) << "job " << job.job << " part " << part << ": " << done;
      well = well && done.ok();
    }
    ++(well ? compared_ : hit ? ended_by_death_ : ended_by_cancel_);
    // Also one that a cancel or a death came too late for.
    if (well && job.interleave) {
      const bool interleaved = chain.member(job.first).news.times(job.job).interleaved;
      interleaved_ += interleaved;
      overtook_ += !interleaved && overtook(index);
    }
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
