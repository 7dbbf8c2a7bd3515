// What the GPU benchmark prints: a JSON object a line, or a table for people.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/gpu_timing.h"

namespace runahead {

// One measurement, or what follows from some.
struct Figure {
  std::string suite;
  std::string model;  // or what stands for it
  std::string shape;
  std::string what;
  double value = 0;  // not finite: there is none, and the note says why
  std::string unit;
  Timing timing = {};  // of what was timed for it; no runs: nothing of its own
  std::vector<std::pair<std::string, double>> numbers = {};
  std::vector<int64_t> parts = {};
  std::string note = {};
};

class Report {
 public:
  // `dtype`: in every line.
  Report(bool json, std::string dtype) : json_(json), dtype_(std::move(dtype)) {}

  void Begin(const std::string& device, int64_t layers, double seconds) const;
  void Add(const Figure& figure) const;
  // A line where a figure could not be had.
  void Missing(Figure figure, const std::string& why) const;

 private:
  const bool json_;
  const std::string dtype_;
};

}  // namespace runahead
