#include "server/gateway/openai/tool_call_object.h"

#include <utility>

#include "server/gateway/openai/json_slice.h"

namespace runahead {
namespace {

// Far above the names of tools, which OpenAI's API bounds by 64.
constexpr size_t kMaxLiteral = 4096;

bool IsJsonBlank(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

}  // namespace

bool IsCallName(absl::string_view key, bool generic) {
  return key == "name" || (generic && key == "tool_name");
}

bool IsCallArguments(absl::string_view key, bool generic) {
  return key == "arguments" || key == "parameters" || (generic && key == "input");
}

ToolCallObject::Part ToolCallObject::Take(char c) {
  const bool of_arguments = in_arguments_;
  if (in_string_) {
    TakeInString(c);
  } else if (depth_ == own_depth_) {
    return TakeOwn(c);
  } else if (c == '"') {
    in_string_ = true;
  } else if (c == '{' || c == '[') {
    ++depth_;
  } else if ((c == '}' || c == ']') && --depth_ == own_depth_) {
    in_arguments_ = false;
  }
  return of_arguments ? Part::kArguments : Part::kOther;
}

void ToolCallObject::TakeInString(char c) {
  if (depth_ == own_depth_) literal_ += c;
  if (literal_.size() > kMaxLiteral) {
    literal_.clear();
    state_ = State::kBroken;
  }
  in_string_ = escaped_ || c != '"';
  escaped_ = !escaped_ && c == '\\';
  if (!in_string_ && depth_ == own_depth_) EndString();
}

void ToolCallObject::EndString() {
  const std::string literal = std::exchange(literal_, "");
  if (state_ != State::kKey && state_ != State::kValue) {
    state_ = State::kBroken;
    return;
  }
  const absl::StatusOr<JsonSlice> text = JsonSlice::Check(literal);
  if (!text.ok()) {
    state_ = State::kBroken;
  } else if (state_ == State::kKey) {
    key_ = text->String();
    state_ = State::kColon;
  } else {
    if (IsCallName(key_, generic_)) name_ = text->String();
    state_ = State::kBehind;
  }
}

ToolCallObject::Part ToolCallObject::TakeOwn(char c) {
  if (c == '}' || c == ']') {
    if (--depth_ == 0) return Part::kClosed;
    own_depth_ = depth_;
    if (state_ != State::kBroken) state_ = State::kBehind;
    return Part::kOther;
  }
  if (c == '"') {
    in_string_ = true;
    literal_ = c;
  } else if (c == '{' || c == '[') {
    ++depth_;
    const bool value = c == '{' && state_ == State::kValue;
    if (value && generic_ && own_depth_ == 1 && key_ == "function") {
      own_depth_ = depth_;
      state_ = State::kKey;
      return Part::kOther;
    }
    const bool arguments = value && IsCallArguments(key_, generic_);
    if (state_ != State::kBroken) state_ = state_ == State::kValue ? State::kBehind : State::kBroken;
    if (!arguments || told_ || name_.empty()) return Part::kOther;
    told_ = in_arguments_ = true;
    return Part::kArgumentsBegin;
  } else if (c == ':' && state_ == State::kColon) {
    state_ = State::kValue;
  } else if (c == ',' && (state_ == State::kValue || state_ == State::kBehind)) {
    state_ = State::kKey;
  } else if (!IsJsonBlank(c) && state_ != State::kValue) {
    state_ = State::kBroken;
  }
  return Part::kOther;
}

}  // namespace runahead
