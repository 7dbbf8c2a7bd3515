// What is said of a load, for people and for programs. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "client/bench/bench_summary.h"
#include "client/bench/load_run.h"

namespace runahead {

// What was asked for.
struct BenchSettings {
  std::string door;   // the router's address or the server's URL
  std::string model;  // as requests name it; may be empty
  std::string date;
  std::string prompts;  // what they are, in words
  uint64_t seed = 0;
  double rate = 0;  // requests a second, may be infinite
  int64_t concurrency = 0;
  int64_t warmup = 0;
  int64_t requests = 0;
  Objectives objectives = {};
};

// The table that `vllm bench serve` prints: the same names, the same order, milliseconds; then what failed, and what is
// to be doubted.
std::string BenchText(const BenchSettings& settings, const LoadOutcome& outcome, const BenchSummary& summary);

// One object on one line without a newline: settings, figures, and arrays with an entry for each request that was sent.
// Keys are those of `vllm bench serve --save-detailed` where it has such; arrays are in seconds, figures in
// milliseconds where their name says so.
std::string BenchJson(const BenchSettings& settings, const LoadOutcome& outcome, const BenchSummary& summary);

}  // namespace runahead
