#include "worker/service/proto_convert.h"

#include <utility>

#include "server/rpc/structure_proto.h"

namespace runahead {

LeaseId LeaseFromProto(const v1::LeaseId& lease) {
  return {lease.incarnation(), lease.number(), lease.epoch()};
}

v1::LeaseId LeaseToProto(const LeaseId& lease) {
  v1::LeaseId message;
  message.set_incarnation(lease.incarnation);
  message.set_number(lease.number);
  message.set_epoch(lease.epoch);
  return message;
}

SamplingOptions SamplingFromProto(const v1::SamplingParams& sampling) {
  SamplingOptions options;
  if (sampling.has_temperature()) options.temperature = sampling.temperature();
  if (sampling.has_top_k()) options.top_k = sampling.top_k();
  if (sampling.has_top_p()) options.top_p = sampling.top_p();
  if (sampling.has_min_p()) options.min_p = sampling.min_p();
  if (sampling.has_repetition_penalty()) options.repetition_penalty = sampling.repetition_penalty();
  if (sampling.has_presence_penalty()) options.presence_penalty = sampling.presence_penalty();
  if (sampling.has_frequency_penalty()) options.frequency_penalty = sampling.frequency_penalty();
  if (sampling.has_seed()) options.seed = sampling.seed();
  if (sampling.has_logprobs()) options.logprobs = sampling.logprobs();
  for (const auto& [id, bias] : sampling.logit_bias()) options.logit_bias.push_back({id, bias});
  return options;
}

DrawRules DrawRulesFromProto(const v1::DrawRules& rules) {
  DrawRules result;
  result.min_tokens = rules.min_tokens();
  result.end_ids.assign(rules.end_ids().begin(), rules.end_ids().end());
  for (const v1::TokenIds& bad : rules.bad_ids()) result.bad_ids.emplace_back(bad.ids().begin(), bad.ids().end());
  if (rules.has_structure()) {
    absl::StatusOr<StructureSpec> structure = StructureFromProto(rules.structure());
    // One without a form is refused like a grammar without text: when it is compiled.
    result.structure = structure.ok() ? *std::move(structure) : StructureSpec{.kind = StructureKind::kGrammar};
  }
  return result;
}

v1::TokenLogprobs LogprobsToProto(const TokenLogprobPairs& logprobs) {
  v1::TokenLogprobs message;
  for (const TokenLogprobPair& pair : logprobs) {
    v1::TokenLogprob& top = *message.add_top();
    top.set_id(pair.id);
    top.set_logprob(pair.logprob);
  }
  return message;
}

v1::SampledToken SampledToProto(const Sampled& token) {
  v1::SampledToken message;
  message.set_id(token.id);
  if (!token.logprobs.empty()) *message.mutable_logprobs() = LogprobsToProto(token.logprobs);
  return message;
}

}  // namespace runahead
