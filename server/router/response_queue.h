// What a client has not taken yet. Tokens are put together, never dropped, so that at most a few messages wait however
// slowly it reads.
#pragma once

#include <deque>
#include <utility>

#include "runahead/v1/inference.pb.h"

namespace runahead {

// Not thread-safe.
class ResponseQueue {
 public:
  // Appends; new tokens join the tokens at the end of the queue, if there are any.
  void Push(v1::GenerateResponse response) {
    if (!response.has_tokens() || queue_.empty() || !queue_.back().has_tokens()) {
      queue_.push_back(std::move(response));
      return;
    }
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
};

}  // namespace runahead
