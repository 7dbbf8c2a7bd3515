// What a client has not taken yet. Tokens are put together, never dropped, so that few messages wait however slowly it
// reads; but none grows beyond what clients take (answer_limits.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>

#include "runahead/v1/inference.pb.h"
#include "server/router/answer_limits.h"

namespace runahead {

// Not thread-safe.
class ResponseQueue {
 public:
  // Appends; new tokens join those at the end of what waits of the same answer, if there are any and these are not
  // full. Messages of one answer stay in their order.
  void Push(v1::GenerateResponse response) {
    const size_t bytes = response.ByteSizeLong();
    Waiting* const last = LastOf(AnswerOf(response));
    if (!response.has_tokens() || last == nullptr || !last->response.has_tokens() ||
        last->bytes + bytes > kFullTokensBytes) {
      queue_.push_back({std::move(response), bytes});
      return;
    }
    last->bytes += bytes;
    v1::Tokens& tokens = *last->response.mutable_tokens();
    tokens.mutable_ids()->MergeFrom(response.tokens().ids());
    tokens.mutable_text()->append(response.tokens().text());
    for (v1::TokenLogprobs& logprobs : *response.mutable_tokens()->mutable_logprobs()) {
      *tokens.add_logprobs() = std::move(logprobs);
    }
  }

  bool empty() const { return queue_.empty(); }

  // The oldest; not empty. What is taken is not added to any more.
  v1::GenerateResponse Pop() {
    v1::GenerateResponse response = std::move(queue_.front().response);
    queue_.pop_front();
    return response;
  }

 private:
  struct Waiting {
    v1::GenerateResponse response;
    size_t bytes = 0;  // no less than what the message has become
  };

  static int32_t AnswerOf(const v1::GenerateResponse& response) {
    if (response.has_started()) return response.started().answer();
    if (response.has_tokens()) return response.tokens().answer();
    return response.has_finished() ? response.finished().answer() : 0;
  }

  // Null where nothing waits of it.
  Waiting* LastOf(int32_t answer) {
    const auto last = std::find_if(queue_.rbegin(), queue_.rend(),
                                   [answer](const Waiting& waiting) { return AnswerOf(waiting.response) == answer; });
    return last == queue_.rend() ? nullptr : &*last;
  }

  std::deque<Waiting> queue_;
};

}  // namespace runahead
