// Messages that prefill and decode share, to and from what the worker computes with.
#pragma once

#include "runahead/v1/worker.pb.h"
#include "worker/kv/store.h"
#include "worker/model/draw_rules.h"
#include "worker/model/sampling.h"

namespace runahead {

LeaseId LeaseFromProto(const v1::LeaseId& lease);
v1::LeaseId LeaseToProto(const LeaseId& lease);

// Absent fields take the defaults that inference.proto names. Does not check ranges (check_sampling.h does).
SamplingOptions SamplingFromProto(const v1::SamplingParams& sampling);
DrawRules DrawRulesFromProto(const v1::DrawRules& rules);

// Ids and logprobs only: workers know no text.
v1::TokenLogprobs LogprobsToProto(const TokenLogprobPairs& logprobs);
v1::SampledToken SampledToProto(const Sampled& token);

}  // namespace runahead
