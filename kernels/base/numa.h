// Which part of a machine is near a PCI device, where the machine has several NUMA nodes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace runahead {

struct NumaNode {
  int number = 0;
  std::vector<int> cpus;  // rising
};

// Of the device at `address` ("0000:3b:00.0"); none where the machine has one node only, or does not say. `sysfs` is
// what lies at /sys.
std::optional<NumaNode> NumaNodeOfPciDevice(const std::string& address, const std::string& sysfs = "/sys");

// The calling thread, and all that it starts from now on, run on the node's CPUs, as far as they were allowed any of
// them, and get memory there while there is some. FAILED_PRECONDITION where they were allowed none, INTERNAL with what
// the system says: nothing has changed then.
absl::Status StayOnNumaNode(const NumaNode& node);

}  // namespace runahead
