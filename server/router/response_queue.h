// What a client has not taken yet. Tokens are put together, never dropped, so that few messages wait however slowly it
// reads; but none grows beyond what clients take (answer_limits.h).
#pragma once

#include <deque>
#include <utility>

#include "runahead/v1/inference.pb.h"
#include "server/router/answer_limits.h"

namespace runahead {

// Not thread-safe.
class ResponseQueue {
 public:
  // Appends; new tokens join the tokens at the end of the queue, if there are any and these are not full.
  void Push(v1::GenerateResponse response) {
    const size_t bytes = response.ByteSizeLong();
    if (!response.has_tokens() || queue_.empty() || !queue_.back().has_tokens() ||
        last_bytes_ + bytes > kFullTokensBytes) {
      queue_.push_back(std::move(response));
      last_bytes_ = bytes;
      return;
    }
    last_bytes_ += bytes;  // no less than what the message becomes
    v1::Tokens& last = *queue_.back().mutable_tokens();
    last.mutable_ids()->MergeFrom(response.tokens().ids());
    last.mutable_text()->append(response.tokens().text());
    for (v1::TokenLogprobs& logprobs : *response.mutable_tokens()->mutable_logprobs()) {
      *last.add_logprobs() = std::move(logprobs);
    }
  }

  bool empty() const { return queue_.empty(); }

  // The oldest; not empty. What is taken is not added to any more.
  v1::GenerateResponse Pop() {
    v1::GenerateResponse response = std::move(queue_.front());
    queue_.pop_front();
    return response;
  }

 private:
  std::deque<v1::GenerateResponse> queue_;
  size_t last_bytes_ = 0;  // of the message at the end
};

}  // namespace runahead
