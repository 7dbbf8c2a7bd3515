// What benchmarks ask the service for.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runahead/v1/inference.pb.h"

namespace runahead {

// So many new tokens behind the ids of `prompt`, as in 1,2,3. INVALID_ARGUMENT where one is no number.
inline absl::StatusOr<v1::GenerateRequest> RequestOfIds(const std::string& prompt, int32_t new_tokens) {
  v1::GenerateRequest request;
  for (const auto id : absl::StrSplit(prompt, ',')) {
    int32_t number = 0;
    if (!absl::SimpleAtoi(id, &number)) return absl::InvalidArgumentError(absl::StrCat("not an id: ", id));
    request.mutable_token_ids()->add_ids(number);
  }
  request.mutable_stop()->set_max_tokens(new_tokens);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

}  // namespace runahead
