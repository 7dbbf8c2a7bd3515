#include "server/gateway/openai/reasoning.h"

#include <utility>

#include "absl/strings/ascii.h"

namespace runahead {
namespace {

constexpr absl::string_view kThinkOpen = "<think>";
constexpr absl::string_view kThinkClose = "</think>";

bool IsThinkBlank(char c) {
  return absl::ascii_isspace(static_cast<unsigned char>(c));
}

}  // namespace

void ReasoningParser::Feed(absl::string_view text, std::string& reasoning, std::string& content) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (state_ == State::kContent) {
      content.append(text.data() + i, text.size() - i);
      return;
    }
    Take(text[i], reasoning, content);
  }
}

void ReasoningParser::Take(char c, std::string& reasoning, std::string& content) {
  switch (state_) {
    case State::kBegin:
      return TakeAtBegin(c, content);
    case State::kEntering:
      if (IsThinkBlank(c)) return;
      state_ = State::kInside;
      return TakeInside(c, reasoning);
    case State::kInside:
      return TakeInside(c, reasoning);
    case State::kLeaving:
      if (IsThinkBlank(c)) return;
      state_ = State::kContent;
      content += c;
      return;
    case State::kContent:
      content += c;
      return;
  }
}

void ReasoningParser::TakeAtBegin(char c, std::string& content) {
  held_ += c;
  if (matched_ == 0 && IsThinkBlank(c)) return;
  if (c != kThinkOpen[matched_]) {
    content += std::exchange(held_, "");
    state_ = State::kContent;
  } else if (++matched_ == kThinkOpen.size()) {
    Drop();
    state_ = State::kEntering;
  }
}

void ReasoningParser::TakeInside(char c, std::string& reasoning) {
  if (c == kThinkClose[matched_]) {
    held_ += c;
    if (++matched_ < kThinkClose.size()) return;
    Drop();
    state_ = State::kLeaving;
    return;
  }
  // A beginning of the tag that was none is what it is. What comes now may begin it, or be a blank at the end.
  const bool begins = c == kThinkClose[0];
  if (matched_ > 0 || (!begins && !IsThinkBlank(c))) {
    reasoning += held_;
    Drop();
  }
  if (begins || IsThinkBlank(c)) {
    held_ += c;
    matched_ = begins ? 1 : 0;
  } else {
    reasoning += c;
  }
}

void ReasoningParser::Drop() {
  held_.clear();
  matched_ = 0;
}

void ReasoningParser::Finish(std::string& reasoning, std::string& content) {
  if (state_ == State::kInside && matched_ > 0) reasoning += held_;
  if (state_ == State::kBegin) content += held_;
  Drop();
}

}  // namespace runahead
