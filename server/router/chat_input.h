// The chat of a request as its model's template takes it.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runahead/v1/inference.pb.h"
#include "server/tokenizer/chat_template.h"

namespace runahead {

// As ChatTemplate::Encode; INVALID_ARGUMENT names the field of the request. `now` is what the template takes for the
// time.
absl::StatusOr<std::vector<int32_t>> EncodeChat(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                                const v1::ChatMessages& given, absl::Time now, KeepGoing keep_going);

}  // namespace runahead
