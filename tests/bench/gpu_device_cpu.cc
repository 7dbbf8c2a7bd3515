#include "kernels/base/status_macros.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/bench/gpu_device.h"

namespace runahead {

absl::StatusOr<BenchDevice> OpenBenchDevice(DType dtype) {
  BenchDevice opened{nullptr, "the CPU's device on two threads: shows that the benchmark runs, and measures nothing"};
  RUNAHEAD_ASSIGN_OR_RETURN(opened.device, NewCpuDevice({.threads = 2, .compute_dtype = dtype}));
  return opened;
}

}  // namespace runahead
