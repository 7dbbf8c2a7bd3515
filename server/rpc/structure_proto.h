// The form of an answer on the wire.
#pragma once

#include "absl/status/statusor.h"
#include "runahead/v1/inference.pb.h"
#include "server/grammar/structure_spec.h"

namespace runahead {

// INVALID_ARGUMENT, with the field named, where it says no form. Not checked otherwise: CheckStructure does that.
absl::StatusOr<StructureSpec> StructureFromProto(const v1::Structure& structure);

v1::Structure StructureToProto(const StructureSpec& spec);

}  // namespace runahead
