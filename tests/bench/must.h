// How benchmarks read numbers, and end where something fails.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"

namespace runahead {

inline void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  Must(value.status());
  return *std::move(value);
}

inline double Number(const std::string& text) {
  double value = 0;
  if (!absl::SimpleAtod(text, &value)) Must(absl::InvalidArgumentError("not a number: " + text));
  return value;
}
// The argument of this index; `otherwise` where there are not as many.
inline double NumberAt(int argc, char** argv, int index, double otherwise) {
  return argc > index ? Number(argv[index]) : otherwise;
}

}  // namespace runahead
