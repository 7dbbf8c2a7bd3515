// How large an answer may be. gRPC's clients refuse messages above 4 MiB unless they were told otherwise, so nothing
// that the public service documents makes a larger one.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "runahead/v1/inference.pb.h"

namespace runahead {

inline constexpr size_t kMaxAnswerBytes = size_t{4} << 20;

// Tokens that a client has not taken are put together into messages of about so many bytes.
inline constexpr size_t kFullTokensBytes = size_t{1} << 20;

// INVALID_ARGUMENT names the text whose ids are more than an answer holds, and both sizes.
absl::Status CheckAnswerSize(const v1::TokenizeResponse& response);

// Leaves out the last spans of those processes that have most, and counts them as dropped, until the trace is an
// answer.
void FitAnswer(v1::Trace& trace);

}  // namespace runahead
