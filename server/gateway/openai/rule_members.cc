#include "server/gateway/openai/rule_members.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/printable.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();

absl::Status ReadLogitBias(JsonObject& body, v1::SamplingParams& sampling) {
  const std::optional<JsonSlice> value = body.Find("logit_bias");
  if (!value.has_value()) return absl::OkStatus();
  if (value->kind() != JsonSlice::Kind::kObject) return body.Wrong("logit_bias", *value, "an object");
  return value->ForMembers([&sampling](const std::string& key, JsonSlice bias) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(key, &id)) {
      return InvalidField("logit_bias", absl::StrCat("\"", Printable(key), "\" is not the id of a token"));
    }
    const bool is_number = bias.kind() == JsonSlice::Kind::kNumber;
    if (!is_number || std::abs(bias.Number()) > std::numeric_limits<float>::max()) {
      return WrongValue(absl::StrCat("logit_bias[", id, "]"), bias, "a number from -100 to 100");
    }
    if (sampling.mutable_logit_bias()->insert({id, static_cast<float>(bias.Number())}).second) return absl::OkStatus();
    return InvalidField(absl::StrCat("logit_bias[", id, "]"), "it is given twice");
  });
}

absl::Status ReadBadWords(JsonObject& body, v1::StopConditions& stop) {
  const std::optional<JsonSlice> value = body.Find("bad_words");
  if (!value.has_value()) return absl::OkStatus();
  if (value->kind() != JsonSlice::Kind::kArray) return body.Wrong("bad_words", *value, "an array of strings");
  return value->ForElements([&stop](JsonSlice word) {
    if (word.kind() != JsonSlice::Kind::kString) {
      return WrongValue(absl::StrCat("bad_words[", stop.bad_words_size(), "]"), word, "a string");
    }
    stop.add_bad_words(word.String());
    return absl::OkStatus();
  });
}

absl::Status ReadTimeout(JsonObject& body, v1::GenerateRequest& request) {
  const std::optional<JsonSlice> value = body.Find("timeout");
  if (!value.has_value()) return absl::OkStatus();
  if (value->kind() != JsonSlice::Kind::kNumber) return body.Wrong("timeout", *value, "a number of seconds above 0");
  request.set_timeout_s(value->Number());
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadRuleMembers(JsonObject& body, v1::GenerateRequest& request) {
  RUNAHEAD_RETURN_IF_ERROR(ReadLogitBias(body, *request.mutable_sampling()));
  v1::StopConditions& stop = *request.mutable_stop();
  RUNAHEAD_RETURN_IF_ERROR(ReadBadWords(body, stop));
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<int64_t> min_tokens,
                            body.Integer("min_tokens", "an integer of at least 0", 0, kMostTokens));
  if (min_tokens.has_value()) stop.set_min_tokens(static_cast<int32_t>(*min_tokens));
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<int64_t> truncate,
                            body.Integer("truncate_prompt_tokens", "an integer of at least 1", 1, kMostTokens));
  if (truncate.has_value()) request.set_truncate_prompt(static_cast<int32_t>(*truncate));
  RUNAHEAD_RETURN_IF_ERROR(ReadTimeout(body, request));
  RUNAHEAD_ASSIGN_OR_RETURN(std::optional<std::string> user, body.String("user"));
  if (user.has_value()) request.set_user(*std::move(user));
  return absl::OkStatus();
}

}  // namespace runahead
