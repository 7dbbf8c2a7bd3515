#include "server/router/answer.h"

#include <utility>

namespace runahead {

Answer::Answer(std::shared_ptr<const Tokenizer> tokenizer, std::vector<std::string> stops,
               const std::vector<int32_t>& stop_ids, int32_t max_tokens)
    : stop_ids_(stop_ids.begin(), stop_ids.end()),
      max_tokens_(max_tokens),
      text_(std::move(tokenizer), /*skip_special=*/true),
      stops_(std::move(stops)) {}

void Answer::Feed(const v1::SampledToken& token, v1::Tokens& message) {
  if (reason_) return;
  if (message.ids().empty()) message.set_index(tokens_);
  message.add_ids(token.id());
  if (token.has_logprobs()) *message.add_logprobs() = token.logprobs();
  ++tokens_;
  if (stop_ids_.contains(token.id())) {
    reason_ = v1::FINISH_REASON_STOP;
    return;
  }
  StopMatcher::Output output = stops_.Feed(text_.Feed(token.id()));
  message.mutable_text()->append(output.text);
  if (output.stopped) {
    stopped_by_text_ = true;
    reason_ = v1::FINISH_REASON_STOP;
  } else if (tokens_ >= max_tokens_) {
    reason_ = v1::FINISH_REASON_LENGTH;
  }
}

std::string Answer::Finish() {
  if (stopped_by_text_) return std::string();
  StopMatcher::Output output = stops_.Feed(text_.Finish());
  if (output.stopped) {
    reason_ = v1::FINISH_REASON_STOP;
    return std::move(output.text);
  }
  return output.text + stops_.Finish();
}

}  // namespace runahead
