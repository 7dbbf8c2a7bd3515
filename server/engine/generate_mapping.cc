#include "server/engine/generate_mapping.h"

#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

namespace engine = vllm::grpc::engine;

constexpr int kNoSeed = -1;  // as vLLM has it

absl::StatusOr<int32_t> Signed(absl::string_view field, uint32_t value) {
  if (value <= uint32_t{std::numeric_limits<int32_t>::max()}) return static_cast<int32_t>(value);
  return InvalidField(field, absl::StrCat(value, " is not below 2^31"));
}

absl::Status Refuse(absl::string_view field, absl::string_view why) {
  return InvalidField(field, absl::StrCat("is not supported: ", why));
}

absl::Status CheckSupported(const engine::GenerateRequest& request) {
  if (request.has_mm_inputs()) return Refuse("mm_inputs", "the model takes text only");
  if (request.extra_mm_inputs_size() > 0) return Refuse("extra_mm_inputs", "the model takes text only");
  if (request.has_media_refs()) return Refuse("media_refs", "the model takes text only");
  constexpr char kTransfer[] = "this service hands KV from prefill to decode by itself";
  if (request.has_kv_transfer_params()) return Refuse("kv_transfer_params", kTransfer);
  if (request.has_kv_transfer_params_json()) return Refuse("kv_transfer_params_json", kTransfer);
  if (request.data_parallel_rank() != 0) return Refuse("data_parallel_rank", "0 is the only rank");
  return absl::OkStatus();
}

absl::Status MapInput(engine::GenerateRequest& request, v1::GenerateRequest& out) {
  if (request.has_text()) {
    out.set_prompt(std::move(*request.mutable_text()));
    return absl::OkStatus();
  }
  if (!request.has_tokenized()) return InvalidField("tokenized", "is missing; give it, or text");
  auto& ids = *out.mutable_token_ids()->mutable_ids();
  ids.Reserve(request.tokenized().input_ids_size());
  for (const uint32_t id : request.tokenized().input_ids()) {
    RUNAHEAD_ASSIGN_OR_RETURN(*ids.Add(), Signed("tokenized.input_ids", id));
  }
  return absl::OkStatus();
}

// What proto3 cannot tell from a field that is not there stays absent: the public service's defaults are vLLM's, but
// for the temperature.
absl::Status MapDraw(const engine::SamplingParams& params, v1::SamplingParams& out) {
  out.set_temperature(params.has_temperature() ? params.temperature() : 1);
  if (params.top_p() != 0) out.set_top_p(params.top_p());
  if (params.top_k() != 0) {
    RUNAHEAD_ASSIGN_OR_RETURN(const int32_t top_k, Signed("sampling_params.top_k", params.top_k()));
    out.set_top_k(top_k);
  }
  if (params.min_p() != 0) out.set_min_p(params.min_p());
  if (params.frequency_penalty() != 0) out.set_frequency_penalty(params.frequency_penalty());
  if (params.presence_penalty() != 0) out.set_presence_penalty(params.presence_penalty());
  if (params.repetition_penalty() != 0) out.set_repetition_penalty(params.repetition_penalty());
  // A negative one modulo 2^64, as at the HTTP door.
  if (params.has_seed() && params.seed() != kNoSeed) out.set_seed(static_cast<uint64_t>(int64_t{params.seed()}));
  if (params.has_logprobs()) out.set_logprobs(params.logprobs());
  *out.mutable_logit_bias() = params.logit_bias();
  return absl::OkStatus();
}

absl::Status MapStop(engine::SamplingParams& params, v1::StopConditions& out) {
  if (params.has_max_tokens()) {
    RUNAHEAD_ASSIGN_OR_RETURN(const int32_t most, Signed("sampling_params.max_tokens", params.max_tokens()));
    out.set_max_tokens(most);
  } else {
    out.set_fill_context(true);
  }
  if (params.min_tokens() != 0) {
    RUNAHEAD_ASSIGN_OR_RETURN(const int32_t least, Signed("sampling_params.min_tokens", params.min_tokens()));
    out.set_min_tokens(least);
  }
  out.mutable_stop()->Swap(params.mutable_stop());
  for (const uint32_t id : params.stop_token_ids()) {
    RUNAHEAD_ASSIGN_OR_RETURN(const int32_t stop, Signed("sampling_params.stop_token_ids", id));
    out.add_stop_ids(stop);
  }
  out.set_ignore_eos(params.ignore_eos());
  return absl::OkStatus();
}

absl::Status MapConstraint(engine::SamplingParams& params, v1::GenerateRequest& out) {
  switch (params.constraint_case()) {
    case engine::SamplingParams::kJsonSchema:
      out.mutable_structure()->set_json_schema(std::move(*params.mutable_json_schema()));
      break;
    case engine::SamplingParams::kRegex:
      out.mutable_structure()->set_regex(std::move(*params.mutable_regex()));
      break;
    case engine::SamplingParams::kGrammar:
      out.mutable_structure()->set_grammar(std::move(*params.mutable_grammar()));
      break;
    case engine::SamplingParams::kStructuralTag:
      return Refuse("sampling_params.structural_tag", "give json_schema, regex, grammar, choice or json_object");
    case engine::SamplingParams::kJsonObject:
      if (params.json_object()) out.mutable_structure()->set_json_object(true);
      break;
    case engine::SamplingParams::kChoice:
      out.mutable_structure()->mutable_choice()->mutable_texts()->Swap(params.mutable_choice()->mutable_choices());
      break;
    case engine::SamplingParams::CONSTRAINT_NOT_SET:
      break;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::GenerateRequest> ToPublicRequest(engine::GenerateRequest& request) {
  RUNAHEAD_RETURN_IF_ERROR(CheckSupported(request));
  v1::GenerateRequest out;
  out.set_request_id(request.request_id());
  RUNAHEAD_RETURN_IF_ERROR(MapInput(request, out));
  engine::SamplingParams& params = *request.mutable_sampling_params();
  RUNAHEAD_RETURN_IF_ERROR(MapDraw(params, *out.mutable_sampling()));
  RUNAHEAD_RETURN_IF_ERROR(MapStop(params, *out.mutable_stop()));
  RUNAHEAD_RETURN_IF_ERROR(MapConstraint(params, out));
  if (params.has_prompt_logprobs()) out.set_prompt_logprobs(params.prompt_logprobs());
  if (params.has_truncate_prompt_tokens()) out.set_truncate_prompt(params.truncate_prompt_tokens());
  if (params.n() > 1) {
    RUNAHEAD_ASSIGN_OR_RETURN(const int32_t n, Signed("sampling_params.n", params.n()));
    out.set_n(n);
  }
  return out;
}

}  // namespace runahead
