// How a child process ended, in words.
#pragma once

#include <string>

namespace runahead {

// Of what waitpid gave: "ended with exit code 1", "was ended by signal 11 (Segmentation fault)".
std::string DescribeEnd(int wait_status);

}  // namespace runahead
