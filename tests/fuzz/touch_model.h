// All that an open model offers.
#pragma once

#include <string_view>

#include "worker/format/model_file.h"

namespace runahead::fuzz {

// Asks every getter for every key, and reads the ends of every tensor. What it says of sizes fits what it gives.
void TouchModel(const ModelFile& file);

}  // namespace runahead::fuzz
