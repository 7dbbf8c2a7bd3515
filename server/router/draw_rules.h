// What a request says of the next token of its answer, for who draws it. Pure.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "runahead/v1/inference.pb.h"
#include "runahead/v1/worker.pb.h"
#include "server/router/agreement.h"
#include "server/tokenizer/tokenizer.h"

namespace runahead {

// Whether there is anything to say.
bool HasDrawRules(const v1::GenerateRequest& request);

// Of a request that was validated. Quick: all texts in it are short. INVALID_ARGUMENT or OUT_OF_RANGE names a bad word
// without tokens, or with one that the model does not have.
absl::StatusOr<v1::DrawRules> ResolveDrawRules(const v1::GenerateRequest& request, const Tokenizer& tokenizer,
                                               const ModelInfo& model);

// What the ids of all rules may take in a router and in messages to workers.
int64_t DrawRulesBytes(const v1::DrawRules& rules);

}  // namespace runahead
