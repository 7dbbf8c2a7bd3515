// An inspection as text and as JSON.
#pragma once

#include <cstdint>
#include <string>

#include "client/models/inspection.h"

namespace runahead {

// Memory is that of MemoryNeeds; `context` 0 is the model's.
std::string InspectionText(const Inspection& inspection, int64_t context, int64_t batch);
// One object, on one line.
std::string InspectionJson(const Inspection& inspection, int64_t context, int64_t batch);

}  // namespace runahead
