// A router or worker of a test's own, beside or instead of a LocalCluster.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/testing/test_process.h"

namespace runahead::testing {

// It serves when this is made, or `address` is empty: it has ended, and process.err() says why.
struct ServingProcess {
  // `args` begins with the program's path.
  explicit ServingProcess(std::vector<std::string> args);

  TestProcess process;
  std::string address, metrics;
};

// A line of /proc/PID/status that is a size ("VmRSS"), in bytes. 0, and a failed test, where the process is gone.
int64_t StatusBytes(pid_t pid, const std::string& name);

// The value of a metric's line ("runahead_kv_leases") on the page at `metrics`, or -1 where there is none.
double MetricOf(const std::string& metrics, const std::string& line);

}  // namespace runahead::testing
