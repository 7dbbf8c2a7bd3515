// A router or worker of a test's own, beside or instead of a LocalCluster.
#pragma once

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

}  // namespace runahead::testing
