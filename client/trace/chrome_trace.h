// A trace as the file that Perfetto and chrome://tracing open (Chrome's JSON trace format).
#pragma once

#include <string>

#include "runahead/v1/inference.pb.h"

namespace runahead {

// One process for each of Runahead's, one thread for each of its lanes (docs/traces.md). Spans of a lane that overlap,
// as sends do, are spread over lanes of the same name with a number: in a lane one span follows the other.
std::string ChromeTrace(const v1::Trace& trace);

}  // namespace runahead
