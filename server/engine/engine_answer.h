// Answers of the public service as those of the engine protocol.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runahead/v1/inference.pb.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

namespace runahead {

// Of one request. For one thread at a time.
class EngineAnswer {
 public:
  // `stream`: tokens are told as they come. `public_request` says how many answers and alternatives there are.
  EngineAnswer(bool stream, const v1::GenerateRequest& public_request);

  // Takes in the next event. Gives what is to be told of it, if anything. OUT_OF_RANGE where a message would have more
  // than the 4 MiB that clients of gRPC take. Answers that are not streamed are told in the order of their indices,
  // whichever ended first: gateways number the choices as they come.
  absl::StatusOr<std::optional<vllm::grpc::engine::GenerateResponse>> Add(const v1::GenerateResponse& event);

  // What more is to be told now, if anything: asked after each message that `Add` or this gave.
  std::optional<vllm::grpc::engine::GenerateResponse> Next();

  // What is kept here takes about so many bytes.
  int64_t bytes() const { return bytes_; }

  // What to ask for instead where that is too much, to be read after a semicolon.
  absl::string_view WayToLess() const;

 private:
  // One of n.
  struct One {
    uint32_t prompt_tokens = 0, cached_tokens = 0;
    std::vector<int32_t> ids;
    vllm::grpc::engine::OutputLogProbs logprobs;  // of ids; empty where chunks tell them
    // Not streamed: it ended, and waits for those before it.
    std::optional<vllm::grpc::engine::GenerateResponse> complete;
  };

  One* Of(int32_t answer);
  void Keep(const v1::PromptLogprobs& scored);
  std::optional<vllm::grpc::engine::GenerateResponse> Tell(One& one, const v1::Tokens& tokens);
  vllm::grpc::engine::GenerateResponse Complete(One& one, const v1::Finished& finished);
  // Where they were not told yet.
  void GivePromptLogprobs(vllm::grpc::engine::InputLogProbs& out);

  const bool stream_;
  const bool has_logprobs_;
  const int most_;         // alternatives of a token
  const int prompt_most_;  // and of one of the prompt
  std::vector<One> answers_;
  size_t next_ = 0;  // not streamed: which one is told next
  vllm::grpc::engine::InputLogProbs prompt_logprobs_;
  int64_t bytes_ = 0;
  int64_t prompt_bytes_ = 0;  // of them, of the prompt's log probabilities
};

}  // namespace runahead
