// What a decode asks for, and where its tokens go.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/base/span_recorder.h"
#include "worker/decode/move.h"
#include "worker/kv/store.h"
#include "worker/model/draw_rules.h"
#include "worker/model/sampling.h"

namespace runahead {

// The continuation of a prompt whose KV arrives, or has arrived, under `lease`: all of it, or that of its first tokens
// (LeaseRequest::handed_tokens). The engine computes the rest, and KV of the output.
struct DecodeSequence {
  LeaseId lease;
  std::vector<int32_t> prompt_ids;  // all of them
  // What the output has already: as a rule the first token, which the tail sampled. More where an answer goes on that
  // began elsewhere. Empty: the first token is drawn here, from the prompt's last row, which then is not handed off.
  std::vector<int32_t> output_ids = {};
  // KV of the first so many tokens comes, or has come, from another worker, which decoded the sequence before, into a
  // lease with LeaseRequest::arriving_tokens: at least of the prompt's, and not of the last one. Absent: as above.
  std::optional<int64_t> moved_tokens = {};
  int64_t max_tokens = 1;  // of the output, those included
  SamplingOptions sampling;
  DrawRules rules = {};
  std::vector<int32_t> stop_ids;                  // one of them is emitted as the last token
  std::string request_id = {};                    // of any text: for logs
  std::shared_ptr<SpanRecorder> spans = nullptr;  // null: it is not traced
};

// Called on the engine's thread, which runs everybody's sequences: never blocks, takes what it is given and returns.
class DecodeSink {
 public:
  virtual ~DecodeSink() = default;
  // The next token after those that the output had.
  virtual void OnToken(Sampled token) = 0;
  // Whether it is parked from now on, and gives no tokens until it comes back. For who wants to know.
  virtual void OnParked(bool /*parked*/) {}
  // What came of DecodeEngine::Move. With OK, OnEnd follows.
  virtual void OnMoved(const MoveOutcome& /*outcome*/) {}
  // Last call: OK at a stop id or at max_tokens, and when it has moved. The lease has been given back before.
  virtual void OnEnd(absl::Status status) = 0;
};

}  // namespace runahead
