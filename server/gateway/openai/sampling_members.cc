#include "server/gateway/openai/sampling_members.h"

#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

constexpr float kFieldTemperature = 1;
constexpr int64_t kLeastInt32 = std::numeric_limits<int32_t>::min();
constexpr int64_t kMostInt32 = std::numeric_limits<int32_t>::max();

absl::Status ReadFloat(JsonObject& body, absl::string_view key, absl::string_view allowed,
                       absl::FunctionRef<void(float)> set) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<float> value, body.Float(key, allowed));
  if (value.has_value()) set(*value);
  return absl::OkStatus();
}

absl::Status ReadSeed(JsonObject& body, v1::SamplingParams& sampling) {
  const std::optional<JsonSlice> value = body.Find("seed");
  if (!value.has_value()) return absl::OkStatus();
  constexpr char kAllowed[] = "an integer of 64 bits";
  if (value->kind() != JsonSlice::Kind::kNumber) return body.Wrong("seed", *value, kAllowed);
  uint64_t seed = 0;
  if (!absl::SimpleAtoi(value->text(), &seed)) {
    const std::optional<int64_t> number = value->Integer();
    if (!number.has_value()) return body.Wrong("seed", *value, kAllowed);
    seed = static_cast<uint64_t>(*number);  // a negative one modulo 2^64
  }
  sampling.set_seed(seed);
  return absl::OkStatus();
}

absl::Status ReadTopK(JsonObject& body, v1::SamplingParams& sampling) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<int64_t> top_k,
                            body.Integer("top_k", "an integer of at least -1", kLeastInt32, kMostInt32));
  if (top_k.has_value()) sampling.set_top_k(*top_k == -1 ? 0 : static_cast<int32_t>(*top_k));
  return absl::OkStatus();
}

absl::Status ReadStop(JsonObject& body, v1::StopConditions& stop) {
  const std::optional<JsonSlice> value = body.Find("stop");
  if (!value.has_value()) return absl::OkStatus();
  if (value->kind() == JsonSlice::Kind::kString) {
    stop.add_stop(value->String());
    return absl::OkStatus();
  }
  if (value->kind() != JsonSlice::Kind::kArray) return body.Wrong("stop", *value, "a string or an array of strings");
  return value->ForElements([&stop](JsonSlice element) {
    if (element.kind() != JsonSlice::Kind::kString) {
      return WrongValue(absl::StrCat("stop[", stop.stop_size(), "]"), element, "a string");
    }
    stop.add_stop(element.String());
    return absl::OkStatus();
  });
}

absl::Status ReadPriority(JsonObject& body, v1::GenerateRequest& request) {
  RUNAHEAD_ASSIGN_OR_RETURN(
      const std::optional<int64_t> priority,
      body.Integer("priority", "an integer", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()));
  // vLLM's: the larger, the later.
  if (priority.value_or(0) > 0) request.set_priority(v1::PRIORITY_LOW);
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadSamplingMembers(JsonObject& body, const DoorFacts& facts, v1::GenerateRequest& request) {
  v1::SamplingParams& sampling = *request.mutable_sampling();
  sampling = facts.recommended;
  if (!sampling.has_temperature()) sampling.set_temperature(kFieldTemperature);
  RUNAHEAD_RETURN_IF_ERROR(
      ReadFloat(body, "temperature", "a number from 0 to 100", [&](float value) { sampling.set_temperature(value); }));
  RUNAHEAD_RETURN_IF_ERROR(
      ReadFloat(body, "top_p", "a number above 0, at most 1", [&](float value) { sampling.set_top_p(value); }));
  RUNAHEAD_RETURN_IF_ERROR(
      ReadFloat(body, "min_p", "a number of at least 0, below 1", [&](float value) { sampling.set_min_p(value); }));
  RUNAHEAD_RETURN_IF_ERROR(ReadFloat(body, "repetition_penalty", "a number above 0, at most 10",
                                     [&](float value) { sampling.set_repetition_penalty(value); }));
  RUNAHEAD_RETURN_IF_ERROR(ReadFloat(body, "presence_penalty", "a number from -2 to 2",
                                     [&](float value) { sampling.set_presence_penalty(value); }));
  RUNAHEAD_RETURN_IF_ERROR(ReadFloat(body, "frequency_penalty", "a number from -2 to 2",
                                     [&](float value) { sampling.set_frequency_penalty(value); }));
  RUNAHEAD_RETURN_IF_ERROR(ReadSeed(body, sampling));
  RUNAHEAD_RETURN_IF_ERROR(ReadTopK(body, sampling));
  v1::StopConditions& stop = *request.mutable_stop();
  RUNAHEAD_RETURN_IF_ERROR(ReadStop(body, stop));
  RUNAHEAD_RETURN_IF_ERROR(body.Integers("stop_token_ids", kLeastInt32, kMostInt32,
                                         [&stop](int64_t id) { stop.add_stop_ids(static_cast<int32_t>(id)); }));
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<bool> ignore_eos, body.Bool("ignore_eos"));
  stop.set_ignore_eos(ignore_eos.value_or(false));
  return ReadPriority(body, request);
}

bool HasOneStop(JsonObject& body) {
  const std::optional<JsonSlice> stop = body.Find("stop");
  return stop.has_value() && stop->kind() == JsonSlice::Kind::kString;
}

}  // namespace runahead
