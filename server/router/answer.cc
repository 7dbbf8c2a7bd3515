#include "server/router/answer.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "server/tokenizer/utf8.h"

namespace runahead {
namespace {

// A stop string that names a control token means that token, which is no text; the others see text alone.
StopMatcher MatcherOf(std::vector<std::string> stops, const Tokenizer& tokenizer) {
  const auto names_none = [&tokenizer](const std::string& stop) { return !tokenizer.NamesSpecial(stop); };
  const auto with_names = std::stable_partition(stops.begin(), stops.end(), names_none);
  std::vector<std::string> naming(std::make_move_iterator(with_names), std::make_move_iterator(stops.end()));
  stops.erase(with_names, stops.end());
  return StopMatcher(std::move(stops), std::move(naming));
}

}  // namespace

void FillTexts(const Tokenizer& tokenizer, v1::TokenLogprobs& logprobs) {
  for (v1::TokenLogprob& token : *logprobs.mutable_top()) {
    const std::string_view bytes = tokenizer.TokenBytes(token.id());
    token.set_text(ReplaceInvalidUtf8(bytes));
    if (token.text() != bytes) token.set_bytes(bytes.data(), bytes.size());
  }
}

Answer::Answer(std::shared_ptr<const Tokenizer> tokenizer, std::vector<std::string> stops,
               const std::vector<int32_t>& stop_ids, int32_t max_tokens, bool goes_on, int32_t min_tokens)
    : tokenizer_(std::move(tokenizer)),
      stop_ids_(stop_ids.begin(), stop_ids.end()),
      max_tokens_(max_tokens),
      min_tokens_(min_tokens),
      text_(tokenizer_, /*skip_special=*/true, goes_on),
      stops_(MatcherOf(std::move(stops), *tokenizer_)) {
  if (max_tokens_ == 0) reason_ = v1::FINISH_REASON_LENGTH;
}

void Answer::Feed(const v1::SampledToken& token, v1::Tokens& message) {
  if (reason_) return;
  if (message.ids().empty()) message.set_index(tokens());
  message.add_ids(token.id());
  if (token.has_logprobs()) {
    v1::TokenLogprobs& added = *message.add_logprobs();
    added = token.logprobs();
    FillTexts(*tokenizer_, added);
  }
  ids_.push_back(token.id());
  stops_.SetLooking(tokens() > min_tokens_);
  const bool ends = stop_ids_.contains(token.id());
  StopMatcher::Output output;
  if (tokenizer_->IsSpecial(token.id())) {
    output = stops_.FeedHidden(tokenizer_->TokenBytes(token.id()));
  } else if (!ends) {
    output = stops_.Feed(text_.Feed(token.id()));
  }
  message.mutable_text()->append(output.text);
  stopped_by_text_ = output.stopped;
  if (output.stopped || ends) {
    reason_ = v1::FINISH_REASON_STOP;
  } else if (tokens() >= max_tokens_) {
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
