#include "scheduler/placement/overtaking.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace runahead {
namespace {

constexpr double kMuch = 1e9;

WaitingPrompt Prompt(double expected_s, double left_s = kMuch) {
  return {.expected_s = expected_s, .allowance = Allowance::Left(left_s), .may_overtake = true};
}

TEST(Allowance, IsAQuarterOfWhatAPromptTakesWithTheWaitInFrontOfIt) {
  Allowance allowance = Allowance::Of(8);
  EXPECT_TRUE(allowance.Fits(2));
  EXPECT_FALSE(allowance.Fits(2.01));
  allowance.Take(1.5);
  EXPECT_TRUE(allowance.Fits(0.5));
  EXPECT_FALSE(allowance.Fits(0.51));
  allowance.GiveBack(1.5);
  EXPECT_EQ(allowance.left_s(), 2);
}

TEST(Allowance, WhatIsNotKnownFitsNowhere) {
  EXPECT_FALSE(Allowance::Of(8).Fits(0));
  EXPECT_FALSE(Allowance().Fits(1e-9));
}

TEST(WhoBegins, TheShortestThatAllBeforeItBear) {
  EXPECT_EQ(WhoBegins({}), std::nullopt);
  EXPECT_EQ(WhoBegins({Prompt(5), Prompt(1), Prompt(3)}), 1u);
  EXPECT_EQ(WhoBegins({Prompt(5, 0.5), Prompt(1), Prompt(0.5)}), 2u);
  EXPECT_EQ(WhoBegins({Prompt(5), Prompt(1, 0.1), Prompt(0.5)}), 1u) << "the second does not bear the third";
  EXPECT_EQ(WhoBegins({Prompt(5, 0), Prompt(1), Prompt(3)}), 0u) << "it was overtaken for long enough";
  EXPECT_EQ(WhoBegins({Prompt(2), Prompt(1)}), 1u);
  EXPECT_EQ(WhoBegins({Prompt(2), Prompt(1.01)}), 0u) << "it takes more than half as long";
}

TEST(WhoBegins, NobodyOvertakesThatWaitsForOthersOrIsNotKnown) {
  WaitingPrompt wide = Prompt(4);
  wide.may_overtake = false;
  EXPECT_EQ(WhoBegins({Prompt(5), wide, Prompt(2)}), 2u);
  EXPECT_EQ(WhoBegins({Prompt(9), wide}), 0u);
  EXPECT_EQ(WhoBegins({wide, Prompt(2)}), 1u) << "it may be overtaken";
  EXPECT_EQ(WhoBegins({wide}), 0u);
  EXPECT_EQ(WhoBegins({Prompt(5), Prompt(0)}), 0u);
}

TEST(WhoBegins, ATurnStaysWithItsTenantAndPriority) {
  WaitingPrompt other = Prompt(8);
  other.tenant = "other";
  WaitingPrompt low = Prompt(8);
  low.priority = RequestPriority::kLow;
  EXPECT_EQ(WhoBegins({Prompt(9), other, low, Prompt(3)}), 3u);
  EXPECT_EQ(WhoBegins({Prompt(20), other, low}), 0u);
  // One of another tenant is overtaken like any.
  other.allowance = Allowance::Left(2);
  EXPECT_EQ(WhoBegins({Prompt(9), other, Prompt(3)}), 0u);
}

TEST(WhoOvertakes, TheShortestThatFitsOfTheFirstTenantWithOneThatDoes) {
  WaitingPrompt other = Prompt(2.5);
  other.tenant = "other";
  EXPECT_EQ(WhoOvertakes({Prompt(5), Prompt(2.5), other, Prompt(1.2)}, 3), 3u);
  EXPECT_EQ(WhoOvertakes({Prompt(5), other, Prompt(0.5)}, 3), 1u) << "its turn comes first of those that fit";
  EXPECT_EQ(WhoOvertakes({Prompt(5, 1), Prompt(2)}, 3), std::nullopt) << "the first does not bear it";
  EXPECT_EQ(WhoOvertakes({Prompt(5)}, 3), std::nullopt);
  EXPECT_EQ(WhoOvertakes({}, 3), std::nullopt);
}

// ---- One worker that keeps to the law, beside the order of arrival.

struct Job {
  double at = 0, takes_s = 0;
  // As it went.
  Allowance allowance = {};
  double left_s = 0, end = -1;
};

class Worker {
 public:
  static constexpr int kLayers = 30;

  // By arrival. Fills in how each went.
  explicit Worker(std::vector<Job>& jobs) : jobs_(jobs) {}

  void Run() {
    while (arrived_ < jobs_.size() || ordered_ != nullptr || !waiting_.empty()) {
      Arrive();
      if (ordered_ == nullptr && waiting_.empty()) {
        now_ = jobs_[arrived_].at;
        continue;
      }
      if (ordered_ == nullptr) ordered_ = Take(*WhoBegins(Views()));
      const double room_s = std::min(BearsS(ordered_->takes_s, ordered_->allowance), ordered_->left_s);
      if (const std::optional<size_t> found = WhoOvertakes(Views(), room_s)) {
        Job& short_one = *Take(*found);
        ordered_->allowance.Take(short_one.takes_s);
        Compute(short_one, short_one.takes_s);
      } else {
        Compute(*ordered_, std::min(ordered_->left_s, ordered_->takes_s / kLayers));
        if (ordered_->end >= 0) ordered_ = nullptr;
      }
    }
  }

 private:
  void Arrive() {
    for (; arrived_ < jobs_.size() && jobs_[arrived_].at <= now_; ++arrived_) {
      Job& job = jobs_[arrived_];
      job.left_s = job.takes_s;
      double front_s = now_ - job.at;  // it came during the layer, or the pass, that has just ended
      if (ordered_ != nullptr) front_s += ordered_->left_s;
      for (const Job* const other : waiting_) front_s += other->takes_s;
      job.allowance = Allowance::Of(front_s + job.takes_s);
      waiting_.push_back(&job);
    }
  }
  std::vector<WaitingPrompt> Views() const {
    std::vector<WaitingPrompt> views;
    for (const Job* const job : waiting_) {
      views.push_back({.expected_s = job->takes_s, .allowance = job->allowance, .may_overtake = true});
    }
    return views;
  }
  Job* Take(size_t index) {
    Job* const taken = waiting_[index];
    for (size_t i = 0; i < index; ++i) waiting_[i]->allowance.Take(taken->takes_s);
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(index));
    return taken;
  }
  void Compute(Job& job, double seconds) {
    now_ += seconds;
    job.left_s -= seconds;
    if (job.left_s < 1e-9) job.end = now_;
  }

  std::vector<Job>& jobs_;
  double now_ = 0;
  size_t arrived_ = 0;
  Job* ordered_ = nullptr;
  std::vector<Job*> waiting_;
};

// When each would end if all went as they came.
std::vector<double> InOrder(const std::vector<Job>& jobs) {
  std::vector<double> ends;
  double now = 0;
  for (const Job& job : jobs) ends.push_back(now = std::max(now, job.at) + job.takes_s);
  return ends;
}

void ExpectNobodyTakesMoreThanAQuarterLonger(const std::vector<Job>& jobs) {
  const std::vector<double> in_order = InOrder(jobs);
  for (size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_LE(jobs[i].end - jobs[i].at, 1.25 * (in_order[i] - jobs[i].at) + 1e-6)
        << "job " << i << " at " << jobs[i].at << ", which takes " << jobs[i].takes_s;
  }
}

TEST(Overtaking, NobodyTakesMoreThanAQuarterLongerThanInTheOrderOfArrival) {
  double slowdown = 0, slowdown_in_order = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> even;
    std::vector<Job> jobs;
    double now = 0;
    const double load = 0.5 + even(random);  // also more than there is time for
    for (int i = 0; i < 400; ++i) {
      const double takes_s = even(random) < 0.2 ? 1 + even(random) : 0.01 * std::pow(30, even(random));
      now += -std::log(1 - even(random)) * 0.38 / load;
      jobs.push_back({.at = now, .takes_s = takes_s});
    }
    Worker(jobs).Run();
    ExpectNobodyTakesMoreThanAQuarterLonger(jobs);
    const std::vector<double> in_order = InOrder(jobs);
    for (size_t i = 0; i < jobs.size(); ++i) {
      slowdown += (jobs[i].end - jobs[i].at) / jobs[i].takes_s;
      slowdown_in_order += (in_order[i] - jobs[i].at) / jobs[i].takes_s;
    }
  }
  EXPECT_LT(slowdown, slowdown_in_order / 2) << "else why do it";
}

TEST(Overtaking, AFloodOfShortOnesKeepsNoLongOneFromItsTurn) {
  std::vector<Job> jobs = {{.at = 0, .takes_s = 0.02}, {.at = 0.001, .takes_s = 1.35}};
  for (int i = 1; i <= 1000; ++i) jobs.push_back({.at = 0.01 * i, .takes_s = 0.02});  // twice what there is time for
  Worker(jobs).Run();
  ExpectNobodyTakesMoreThanAQuarterLonger(jobs);
}

// As SmolLM2-135M takes on two cores with AMX: 4,200, 1,155 and 14 tokens.
constexpr double kLong = 1.35, kMedium = 0.24, kShort = 0.02;

TEST(Overtaking, ShortPromptsBehindFourLongOnesTakeAFewTimesWhatTheyTakeAlone) {
  std::vector<Job> jobs(4, {.at = 0, .takes_s = kLong});
  for (int i = 0; i < 6; ++i) jobs.push_back({.at = 0.5, .takes_s = kShort});
  Worker(jobs).Run();
  ExpectNobodyTakesMoreThanAQuarterLonger(jobs);
  for (size_t i = 4; i < jobs.size(); ++i) EXPECT_LE(jobs[i].end - jobs[i].at, 10 * kShort);
  jobs.assign(4, {.at = 0, .takes_s = kLong});
  jobs.push_back({.at = 0.5, .takes_s = kMedium});
  Worker(jobs).Run();
  ExpectNobodyTakesMoreThanAQuarterLonger(jobs);
  EXPECT_LE(jobs[4].end - jobs[4].at, 3 * kMedium);
}

TEST(Overtaking, WhatTheComputedOneDoesNotBearBeginsBeforeTheNext) {
  std::vector<Job> jobs(4, {.at = 0, .takes_s = kLong});
  for (int i = 0; i < 10; ++i) jobs.push_back({.at = 0.5, .takes_s = kShort});
  jobs.push_back({.at = 0.5, .takes_s = kMedium});
  Worker(jobs).Run();
  ExpectNobodyTakesMoreThanAQuarterLonger(jobs);
  EXPECT_NEAR(jobs.back().end, jobs[0].end + kMedium, 1e-6);
}

}  // namespace
}  // namespace runahead
