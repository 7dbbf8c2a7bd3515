#include "server/tokenizer/call_form.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/tokenizer/json_view.h"

namespace runahead {
namespace {

constexpr const char* kTool = "kalimba";
constexpr const char* kArgument = "ocarina";  // nothing else of the chat has this word
// No form of a call begins or ends with it.
constexpr const char* kSaid = "~";
// Of markers in use, the longest has some 20 bytes: what is longer is a turn's frame, and no word of the model's.
constexpr size_t kMostMarker = 64;
// A call of the chat takes far less, also where it is indented; bounds what a template that writes brackets alone
// costs.
constexpr size_t kMostCall = 4096;

Chat EndingWith(ChatMessage last) {
  return {.messages = {{"user", "x"}, std::move(last)},
          .tools = absl::StrCat(R"([{"type": "function", "function": {"name": ")", kTool,
                                R"(", "description": "x", "parameters": {"type": "object", "properties": {}}}}])"),
          .add_generation_prompt = false};
}

// The members by which an object is a call.
struct CallKeys {
  std::string name;
  std::string arguments;
  bool nested = false;  // they stand in the member "function"
  bool typed = false;   // beside which is "type"
};

// Nothing where the object is no call of the tool.
std::optional<CallKeys> KeysOf(const JsonView& object) {
  if (object.Has("function")) {
    const absl::StatusOr<JsonView> function = object.Get("function");
    std::optional<CallKeys> keys = function.ok() && function->IsObject() ? KeysOf(*function) : std::nullopt;
    if (!keys || keys->nested) return std::nullopt;
    keys->nested = true;
    keys->typed = object.Has("type");
    return keys;
  }
  CallKeys keys;
  for (const char* key : {"name", "tool_name"}) {
    const absl::StatusOr<std::string> name = object.Has(key) ? object.GetString(key) : std::string();
    if (name.ok() && *name == kTool) keys.name = key;
  }
  for (const char* key : {"arguments", "parameters", "input"}) {
    if (object.Has(key)) keys.arguments = key;
  }
  return keys.name.empty() || keys.arguments.empty() ? std::nullopt : std::optional<CallKeys>(keys);
}

// Where the object that begins at `begin` ends; npos: it does not.
size_t ObjectEnd(std::string_view text, size_t begin) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = begin; i < text.size(); ++i) {
    if (in_string) {
      if (text[i] == '\\')
        ++i;
      else if (text[i] == '"')
        in_string = false;
    } else if (text[i] == '"') {
      in_string = true;
    } else if (text[i] == '{') {
      ++depth;
    } else if (text[i] == '}' && --depth == 0) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

struct CallObject {
  size_t begin = 0;
  size_t end = 0;
  CallKeys keys;
};

// The outermost object that is the call whose arguments stand at `at`.
std::optional<CallObject> CallAround(std::string_view text, size_t at) {
  text = text.substr(0, at + kMostCall);
  for (size_t begin = text.find('{', at - std::min(at, kMostCall)); begin < at; begin = text.find('{', begin + 1)) {
    const size_t end = ObjectEnd(text, begin);
    if (end == std::string_view::npos || end <= at) continue;
    const std::string_view object = text.substr(begin, end - begin);
    const absl::StatusOr<JsonView> json = JsonView::Parse({object.data(), object.size()}, "the call");
    if (!json.ok()) continue;
    if (std::optional<CallKeys> keys = KeysOf(*json)) return CallObject{begin, end, *std::move(keys)};
  }
  return std::nullopt;
}

// In characters.
size_t CommonPrefix(const MarkedText& one, const MarkedText& other) {
  const auto equal = [](char32_t a, char32_t b) { return AnyOrigin::eq(a, b); };
  return std::mismatch(one.begin(), one.end(), other.begin(), other.end(), equal).first - one.begin();
}

size_t CommonSuffix(const MarkedText& one, const MarkedText& other) {
  const auto equal = [](char32_t a, char32_t b) { return AnyOrigin::eq(a, b); };
  return std::mismatch(one.rbegin(), one.rend(), other.rbegin(), other.rend(), equal).first - one.rbegin();
}

// As an answer's text shows it: control tokens do not stand there.
std::string Shown(std::string_view written, const Tokenizer& tokenizer) {
  const std::vector<TextPart> parts = {{std::string(written), /*parse_special=*/true}};
  const absl::StatusOr<std::vector<int32_t>> ids = tokenizer.EncodeParts(parts);
  const auto is_special = [&tokenizer](int32_t id) { return tokenizer.IsSpecial(id); };
  if (!ids.ok() || std::none_of(ids->begin(), ids->end(), is_special)) return std::string(written);
  return tokenizer.Decode(*ids, /*skip_special=*/true);
}

std::string ExampleOf(const CallKeys& keys) {
  const std::string call = absl::StrCat("{\"", keys.name, "\": \"NAME\", \"", keys.arguments, "\": {}}");
  if (!keys.nested) return call;
  return absl::StrCat("{", keys.typed ? "\"type\": \"function\", " : "", "\"function\": ", call, "}");
}

std::string FormOf(const std::string& before, const std::string& behind, const CallKeys& keys,
                   const Tokenizer& tokenizer) {
  const absl::string_view marker = absl::StripAsciiWhitespace(before);
  // Those two forms are read with these keys alone.
  const bool common = !keys.nested && keys.name == "name" && keys.arguments != "input";
  if (common && absl::EndsWith(marker, "<tool_call>")) return "hermes";
  if (common && absl::EndsWith(marker, "<|python_tag|>")) return "llama3";
  if (common && marker.empty() && keys.arguments == "parameters") return "llama3";
  std::string shown_before = Shown(before, tokenizer), shown_behind = Shown(behind, tokenizer);
  // A call in other JSON is no call that the door reads.
  if (absl::StrContains(shown_before, '{') || absl::StrContains(shown_behind, '}')) return "";
  if (shown_before.size() > kMostMarker || shown_behind.size() > kMostMarker) {
    const bool list = absl::EndsWith(absl::StripAsciiWhitespace(shown_before), "[");
    shown_before = list ? "[" : "";
    shown_behind = list ? "]" : "";
  }
  return absl::StrCat("json ", shown_before, ExampleOf(keys), shown_behind);
}

}  // namespace

Chat CallingChat() {
  ChatMessage call{"assistant", ""};
  // As a text, which is right for templates that print the arguments and for those that make JSON of them. Some want
  // ids of nine characters.
  call.tool_calls = absl::StrCat(R"([{"id": "abcdefghi", "type": "function", "function": {"name": ")", kTool,
                                 R"(", "arguments": "{\")", kArgument, R"(\": \"x\"}"}}])");
  return EndingWith(std::move(call));
}

Chat SayingChat() {
  return EndingWith({"assistant", kSaid});
}

std::optional<std::string> CallFormOf(const MarkedText& calling, const MarkedText& saying, const Tokenizer& tokenizer) {
  const std::string text = ToUtf8(calling);
  const size_t at = text.rfind(kArgument);
  if (at == std::string::npos) return std::nullopt;
  const std::optional<CallObject> call = CallAround(text, at);
  if (!call) return "";
  const size_t begin = ToUtf8(calling.substr(0, CommonPrefix(calling, saying))).size();
  const size_t suffix = ToUtf8(calling.substr(calling.size() - CommonSuffix(calling, saying))).size();
  const size_t end = text.size() - suffix;
  const std::string before = begin < call->begin ? text.substr(begin, call->begin - begin) : "";
  const std::string behind = end > call->end ? text.substr(call->end, end - call->end) : "";
  return FormOf(before, behind, call->keys, tokenizer);
}

}  // namespace runahead
