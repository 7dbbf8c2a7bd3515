#include "server/gateway/openai/tool_calls.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "server/gateway/openai/json_slice.h"

namespace runahead {
namespace {

// The arguments may be an object, or a text that holds one.
std::optional<std::string> ArgumentsOf(JsonSlice value) {
  if (value.kind() == JsonSlice::Kind::kObject) return std::string(value.text());
  if (value.kind() != JsonSlice::Kind::kString) return std::nullopt;
  std::string text = value.String();
  const absl::StatusOr<JsonSlice> inside = JsonSlice::Check(text);
  if (!inside.ok() || inside->kind() != JsonSlice::Kind::kObject) return std::nullopt;
  return text;
}

// What of a call the members of its object say; of a generic one those of its "function", too, which is `inner`.
absl::Status ReadCall(JsonSlice object, bool generic, bool inner, ToolCallPart& call) {
  return object.ForMembers([&](const std::string& key, JsonSlice value) {
    if (generic && !inner && key == "function" && value.kind() == JsonSlice::Kind::kObject) {
      return ReadCall(value, generic, /*inner=*/true, call);
    }
    if (IsCallName(key, generic) && value.kind() == JsonSlice::Kind::kString) call.name = value.String();
    if (!IsCallArguments(key, generic)) return absl::OkStatus();
    std::optional<std::string> arguments = ArgumentsOf(value);
    if (!arguments.has_value()) return absl::InvalidArgumentError("they are no object");
    call.arguments = *std::move(arguments);
    return absl::OkStatus();
  });
}

// Nothing where the object is no call.
std::optional<ToolCallPart> CallOf(absl::string_view object, bool generic) {
  const absl::StatusOr<JsonSlice> json = JsonSlice::Check(object);
  if (!json.ok()) return std::nullopt;
  ToolCallPart call;
  call.arguments = generic ? "" : "{}";
  const absl::Status status = ReadCall(*json, generic, /*inner=*/false, call);
  if (!status.ok() || call.name.empty() || call.arguments.empty()) return std::nullopt;
  return call;
}

}  // namespace

bool ToolCallParser::IsBlank(char c) const {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r' || (called_ && absl::StrContains(format_.separator, c));
}

void ToolCallParser::Release(std::string& content) {
  content += std::exchange(held_, "");
  matched_ = 0;
  marked_ = false;
}

void ToolCallParser::Feed(absl::string_view text, std::string& content, std::vector<ToolCallPart>& calls) {
  for (const char c : text) Take(c, content, calls);
}

void ToolCallParser::Take(char c, std::string& content, std::vector<ToolCallPart>& calls) {
  switch (state_) {
    case State::kBetween:
    case State::kContent:
      return TakeOutside(c, content);
    case State::kOpened:
      return TakeOpened(c, content);
    case State::kObject:
      return TakeInObject(c, content, calls);
    case State::kListed:
      return TakeListed(c, content);
    case State::kClosing:
      return TakeClosing(c, content, calls);
    case State::kPast:
      return;
  }
}

void ToolCallParser::TakeOutside(char c, std::string& content) {
  if (state_ == State::kContent && !format_.anywhere) {
    content += c;
    return;
  }
  const bool begins = matched_ == 0 && state_ == State::kBetween;
  if (begins && IsBlank(c)) {
    held_ += c;
  } else if (begins && format_.bare && c == '{') {
    BeginObject();
  } else if (matched_ < format_.open.size() && c == format_.open[matched_]) {
    held_ += c;
    if (++matched_ < format_.open.size()) return;
    state_ = State::kOpened;
    marked_ = true;
  } else if (begins && format_.generic && c == '[') {
    state_ = State::kOpened;
    TakeOpened(c, content);
  } else if (format_.generic && matched_ == 1 && held_.back() == '[') {
    // A list, and not `open`, which begins alike.
    matched_ = 0;
    in_list_ = true;
    state_ = State::kOpened;
    TakeOpened(c, content);
  } else {
    NoCall(content);
    // The first character of `open` does not come in it again: only this one may begin it anew.
    if (format_.anywhere && c == format_.open[0]) {
      held_ += c;
      matched_ = 1;
    } else {
      content += c;
    }
  }
}

void ToolCallParser::BeginObject() {
  object_begin_ = held_.size();
  held_ += '{';
  object_.Begin(format_.generic);
  told_ = false;
  state_ = State::kObject;
}

// Behind the marker of a call it is one, whatever its name: the client tells the model that there is no such tool.
bool ToolCallParser::MayCall(const std::string& name) const {
  return marked_ || (names_ != nullptr && names_->contains(name));
}

void ToolCallParser::NoCall(std::string& content) {
  Release(content);
  state_ = State::kContent;
}

void ToolCallParser::Told() {
  told_ = called_ = true;
  held_.clear();
  matched_ = 0;
}

void ToolCallParser::EndCall() {
  if (only_first_) {
    state_ = State::kPast;
  } else if (in_list_) {
    state_ = State::kListed;
  } else {
    EndCalls();
  }
}

void ToolCallParser::EndCalls() {
  in_list_ = false;
  state_ = format_.close.empty() ? State::kBetween : State::kClosing;
}

void ToolCallParser::TakeOpened(char c, std::string& content) {
  if (c == '{') return BeginObject();
  const bool list = format_.generic && !in_list_ && c == '[';
  if (list) in_list_ = true;
  if (list || IsBlank(c)) {
    held_ += c;
    return;
  }
  NoCall(content);
  TakeOutside(c, content);
}

void ToolCallParser::TakeListed(char c, std::string& content) {
  if (c == '{') return BeginObject();
  if (c == ']') {
    held_.clear();
    return EndCalls();
  }
  held_ += c;
  if (IsBlank(c)) return;
  NoCall(content);
}

void ToolCallParser::TakeInObject(char c, std::string& content, std::vector<ToolCallPart>& calls) {
  const ToolCallObject::Part part = object_.Take(c);
  if (told_) {
    if (part == ToolCallObject::Part::kArguments) {
      if (calls.empty()) calls.push_back({.begins = false, .name = "", .arguments = ""});
      calls.back().arguments += c;
    }
    if (part == ToolCallObject::Part::kClosed) EndCall();
    return;
  }
  held_ += c;
  if (part == ToolCallObject::Part::kArgumentsBegin) {
    if (!MayCall(object_.name())) return NoCall(content);
    calls.push_back({.begins = true, .name = object_.name(), .arguments = "{"});
    return Told();
  }
  if (part != ToolCallObject::Part::kClosed) return;
  std::optional<ToolCallPart> call = CallOf(absl::string_view(held_).substr(object_begin_), format_.generic);
  if (!call.has_value() || !MayCall(call->name)) return NoCall(content);
  calls.push_back(*std::move(call));
  Told();
  EndCall();
}

void ToolCallParser::TakeClosing(char c, std::string& content, std::vector<ToolCallPart>& calls) {
  held_ += c;
  if (matched_ == 0 && IsBlank(c)) return;
  if (c == format_.close[matched_]) {
    if (++matched_ < format_.close.size()) return;
    held_.clear();
    matched_ = 0;
    marked_ = false;
    state_ = State::kBetween;
    return;
  }
  // It was left out: what is held is what comes behind.
  const std::string behind = std::exchange(held_, "");
  matched_ = 0;
  state_ = State::kBetween;
  Feed(behind, content, calls);
}

void ToolCallParser::Finish(std::string& content) {
  const bool blanks = std::all_of(held_.begin(), held_.end(), [this](char held) { return IsBlank(held); });
  if (state_ == State::kClosing || (called_ && blanks)) held_.clear();
  Release(content);
}

}  // namespace runahead
