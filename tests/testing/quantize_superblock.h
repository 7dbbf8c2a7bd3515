// Scalar quantisers of the types of superblocks (kernels/base/superblock.h) and of IQ4_NL, for synthetic checkpoints.
#pragma once

#include <string>

#include "kernels/base/weight_type.h"

namespace runahead {

// Appends BlockOf(type).elements values, rounded to the nearest that the type can say beside scales that fit the
// largest.
void AppendSuperblock(std::string& out, WeightType type, const float* x);
void AppendIq4Nl(std::string& out, const float* x);

}  // namespace runahead
