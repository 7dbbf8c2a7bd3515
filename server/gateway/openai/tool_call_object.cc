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

ToolCallObject::Part ToolCallObject::Take(char c) {
  const bool of_arguments = in_arguments_;
  if (in_string_) {
    TakeInString(c);
  } else if (depth_ == 1) {
    return TakeOwn(c);
  } else if (c == '"') {
    in_string_ = true;
  } else if (c == '{' || c == '[') {
    ++depth_;
  } else if ((c == '}' || c == ']') && --depth_ == 1) {
    in_arguments_ = false;
  }
  return of_arguments ? Part::kArguments : Part::kOther;
}

void ToolCallObject::TakeInString(char c) {
  if (depth_ == 1) literal_ += c;
  if (literal_.size() > kMaxLiteral) {
    literal_.clear();
    state_ = State::kBroken;
  }
  in_string_ = escaped_ || c != '"';
  escaped_ = !escaped_ && c == '\\';
  if (!in_string_ && depth_ == 1) EndString();
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
    if (key_ == "name") name_ = text->String();
    state_ = State::kBehind;
  }
}

ToolCallObject::Part ToolCallObject::TakeOwn(char c) {
  if (c == '}' || c == ']') {
    --depth_;
    return Part::kClosed;
  }
  if (c == '"') {
    in_string_ = true;
    literal_ = c;
  } else if (c == '{' || c == '[') {
    ++depth_;
    const bool arguments = c == '{' && state_ == State::kValue && (key_ == "arguments" || key_ == "parameters");
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
