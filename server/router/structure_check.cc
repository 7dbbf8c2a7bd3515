#include "server/router/structure_check.h"

#include <string>
#include <utility>

#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "server/grammar/grammar_compiler.h"
#include "server/grammar/structure_spec.h"
#include "server/rpc/status.h"
#include "server/rpc/structure_proto.h"

namespace runahead {
namespace {

// With the field, which the message begins with, named for programs too.
absl::Status WithField(const absl::Status& status) {
  if (status.ok()) return status;
  const std::pair<std::string, std::string> parts = absl::StrSplit(status.message(), absl::MaxSplits(": ", 1));
  return FieldError(status.code(), parts.first, parts.second);
}

}  // namespace

absl::Status CheckStructureOf(const v1::GenerateRequest& request) {
  if (!request.has_structure()) return absl::OkStatus();
  RUNAHEAD_RETURN_IF_ERROR(WithField(StructuredOutputStatus()));
  // The form says where the answer ends.
  if (request.stop().ignore_eos()) return InvalidField("stop.ignore_eos", "it does not go with structure");
  if (request.stop().min_tokens() > 0) return InvalidField("stop.min_tokens", "it does not go with structure");
  RUNAHEAD_ASSIGN_OR_RETURN(const StructureSpec spec, StructureFromProto(request.structure()));
  return WithField(CheckStructure(spec));
}

}  // namespace runahead
