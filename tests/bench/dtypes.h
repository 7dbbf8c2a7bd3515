// The dtypes of a bench's command line.
#pragma once

#include <string>
#include <utility>

#include "absl/strings/str_split.h"
#include "kernels/cpu/cpu_device_options.h"
#include "tests/bench/must.h"

namespace runahead {

// COMPUTE[+KV], as a worker's options `dtype` and `kv_dtype`; KV is `auto` where it is not said.
inline void SetDTypes(const std::string& names, bool weights_are_quantised, CpuDeviceOptions& options) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(names, absl::MaxSplits('+', 1));
  Must(SetNumerics(parts.first, weights_are_quantised, options));
  Must(SetKvDType(parts.second.empty() ? "auto" : parts.second, options));
}

}  // namespace runahead
