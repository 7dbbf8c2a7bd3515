// A process of the product whose memory a test watches.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/integration/local_cluster.h"
#include "tests/integration/serving_process.h"
#include "tests/testing/sanitized.h"

namespace runahead::testing {

inline constexpr int64_t kMiB = int64_t{1} << 20;
// What may stay, where it is more than a tenth of the start: less than 2 MiB that is free is not given back
// (MemoryReturn), and there are the ends of heaps, stacks of threads that were started, and pages of which a part is in
// use. Beside compilers 0.1 to 6.7 MiB were seen.
inline constexpr int64_t kMayStay = 12 * kMiB;
// Freed memory is given back within this time. Silent calls have ended long before.
inline constexpr absl::Duration kSoon = absl::Seconds(30);

// A process whose memory is watched.
class WatchedProcess {
 public:
  explicit WatchedProcess(std::vector<std::string> args) : process_(std::move(args)) {
    EXPECT_FALSE(process_.address.empty()) << process_.process.err();
    Begin();
  }
  const std::string& address() const { return process_.address; }
  pid_t pid() const { return process_.process.pid(); }

  // What it takes now is its start; from now on the peak counts.
  void Begin() {
    start_ = Status("VmRSS");
    own_at_start_ = Status("RssAnon");
    std::ofstream(absl::StrCat("/proc/", process_.process.pid(), "/clear_refs")) << 5;
  }
  void ExpectPeakBelow(int64_t bytes) {
    const int64_t peak = Status("VmHWM") - start_;
    std::cerr << peak / kMiB << " MiB above the start at the most\n";
    if (kSanitized) return;
    EXPECT_LT(peak, bytes);
  }
  void ExpectBackSoon() {
    if (kSanitized) return;
    const int64_t may_stay = std::max(start_ / 10, kMayStay);
    // Pages of programs and files are not its own.
    const auto stays = [&] { return Status("RssAnon") - own_at_start_; };
    const bool back = Eventually([&] { return stays() < may_stay; }, kSoon);
    std::cerr << stays() / 1024 << " KiB above the start in the end\n";
    EXPECT_TRUE(back) << stays() / 1024 << " KiB stay, " << may_stay / 1024 << " may";
  }
  double Metric(const std::string& series) const { return MetricOf(process_.metrics, series); }
  double Held() const { return Metric("runahead_request_memory_bytes{kind=\"held\"}"); }
  double Refused(const std::string& reason) const {
    return Metric(absl::StrCat("runahead_messages_refused_total{reason=\"", reason, "\"}"));
  }

 private:
  int64_t Status(const std::string& name) const { return StatusBytes(process_.process.pid(), name); }

  ServingProcess process_;
  int64_t start_ = 0, own_at_start_ = 0;
};

// Looks again and again at what a router charges its requests for. Ends with the test's block.
class ChargeWatch {
 public:
  explicit ChargeWatch(const WatchedProcess& router)
      : router_(router), thread_([this](const std::stop_token& stop) { Watch(stop); }) {}

  // What was seen until now.
  void ExpectWithinLimits() {
    thread_.request_stop();
    thread_.join();
    for (size_t kind = 0; kind < kKinds.size(); ++kind) {
      const double limit = router_.Metric(Series("runahead_request_memory_limit_bytes", kind));
      std::cerr << kKinds[kind] << ": " << most_[kind] / kMiB << " of " << limit / kMiB << " MiB were charged\n";
      EXPECT_GT(limit, 0);
      // Rates are not steady, and a whole answer is charged before one that is older goes.
      EXPECT_LE(most_[kind], (kKinds[kind] == "held" ? 1 : 1.25) * limit) << kKinds[kind];
    }
  }

 private:
  static constexpr std::array<absl::string_view, 3> kKinds = {"arriving", "held", "answers"};
  static constexpr absl::Duration kBetweenLooks = absl::Milliseconds(20);

  static std::string Series(const char* name, size_t kind) {
    return absl::StrCat(name, "{kind=\"", kKinds[kind], "\"}");
  }
  void Watch(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      for (size_t kind = 0; kind < kKinds.size(); ++kind) {
        most_[kind] = std::max(most_[kind], router_.Metric(Series("runahead_request_memory_bytes", kind)));
      }
      absl::SleepFor(kBetweenLooks);
    }
  }

  const WatchedProcess& router_;
  std::array<double, kKinds.size()> most_ = {};  // of each kind; the thread's, until it has ended
  std::jthread thread_;
};

}  // namespace runahead::testing
