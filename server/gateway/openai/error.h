// An error of the service as the field writes it.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace runahead {

struct OpenAiError {
  int http_status = 500;
  std::string body;                                // {"error":{"message","type","param","code"}}
  std::optional<absl::Duration> retry_after = {};  // where the client may try again
};

// `status` is not OK. Members are named as this door has them: of sampling.top_p it says top_p.
OpenAiError ToOpenAiError(const absl::Status& status);

}  // namespace runahead
