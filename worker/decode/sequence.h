// What a decode asks for, and where its tokens go.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/base/span_recorder.h"
#include "worker/kv/store.h"
#include "worker/model/sampling.h"

namespace runahead {

// The continuation of a prompt whose KV arrives, or has arrived, under `lease`.
struct DecodeSequence {
  LeaseId lease;
  std::vector<int32_t> prompt_ids;  // all of them
  int32_t first_token = 0;          // sampled by the tail; its KV is not in the store
  int64_t max_tokens = 1;           // of the output, the first token included
  SamplingOptions sampling;
  std::vector<int32_t> stop_ids;                  // one of them is emitted as the last token
  std::string request_id = {};                    // of any text: for logs
  std::shared_ptr<SpanRecorder> spans = nullptr;  // null: it is not traced
};

// Called on the engine's thread, which runs everybody's sequences: never blocks, takes what it is given and returns.
class DecodeSink {
 public:
  virtual ~DecodeSink() = default;
  // The next token after the first one.
  virtual void OnToken(Sampled token) = 0;
  // Last call: OK at a stop id or at max_tokens. The lease has been given back before.
  virtual void OnEnd(absl::Status status) = 0;
};

}  // namespace runahead
