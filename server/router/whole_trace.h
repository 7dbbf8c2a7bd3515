// A trace that is whole, and what else a collector is told of its request.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runahead/v1/inference.pb.h"
#include "server/base/trace_context.h"

namespace runahead {

// What was asked for, and what came of it. Nothing of prompts and answers. What was not come to is as it is here.
struct TracedRequest {
  bool chat = false;
  std::string model = {};  // as the client named it; the served one's name where it named none
  std::string served_model = {};
  v1::SamplingParams sampling = {};  // as the client gave them
  int32_t max_tokens = 0;            // 0: not resolved
  int32_t answers = 1;               // to the prompt; the rest is of the first one
  absl::Status status = {};          // its message may quote the prompt after all, and is not sent
  v1::FinishReason finish_reason = v1::FINISH_REASON_UNSPECIFIED;
  int64_t prompt_tokens = 0, known_tokens = 0, generated_tokens = 0;  // known: of the prompt, those whose KV was there
  int failovers = 0;
  absl::Duration ttft = {};        // 0: no token was generated
  absl::Duration wall_ahead = {};  // of the router's clock: the time of day, when the request ended
};

struct WholeTrace {
  v1::Trace trace;
  std::vector<std::string> services;  // "runahead-decode": what each of the trace's processes is, in their order
  TraceContext span;                  // the router's own, of the whole request; workers have it as their parent
  std::string parent_span_id;         // 16 hexadecimal digits; empty: the request came from no span
  int64_t arrival_ns = 0;             // since 1970, on the router's clock
  TracedRequest request;
};

}  // namespace runahead
