#include "server/gateway/openai/chat_messages.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/printable.h"
#include "server/gateway/openai/request_members.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

constexpr char kContentAllowed[] = "a string or an array of parts of text";

// Adds the text of one part of a message's content.
absl::Status AddPart(JsonSlice value, const std::string& place, std::string& content) {
  RUNAHEAD_ASSIGN_OR_RETURN(JsonObject part, JsonObject::Read(value, place));
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<std::string> type, part.String("type"));
  if (!type.has_value()) return InvalidField(part.PlaceOf("type"), "it is missing; \"text\" is allowed");
  if (type != "text") {
    return InvalidField(part.PlaceOf("type"),
                        absl::StrCat("\"", Printable(*type), "\" is not supported here; \"text\" is allowed"));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<std::string> text, part.String("text"));
  if (!text.has_value()) return InvalidField(part.PlaceOf("text"), "it is missing");
  content += *text;
  return absl::OkStatus();
}

absl::Status ReadContent(JsonObject& given, v1::ChatMessage& message) {
  const std::optional<JsonSlice> value = given.Find("content");
  if (!value.has_value()) {
    // An assistant may have called tools, or said nothing.
    if (message.role() == "assistant") return absl::OkStatus();
    return InvalidField(given.PlaceOf("content"), absl::StrCat("it is missing; ", kContentAllowed, " is allowed"));
  }
  if (value->kind() == JsonSlice::Kind::kString) {
    message.set_content(value->String());
    return absl::OkStatus();
  }
  if (value->kind() != JsonSlice::Kind::kArray) return given.Wrong("content", *value, kContentAllowed);
  int index = 0;
  return value->ForElements([&](JsonSlice part) {
    return AddPart(part, absl::StrCat(given.PlaceOf("content"), "[", index++, "]"), *message.mutable_content());
  });
}

absl::Status ReadRole(JsonObject& given, v1::ChatMessage& message) {
  RUNAHEAD_ASSIGN_OR_RETURN(std::optional<std::string> role, given.String("role"));
  if (!role.has_value()) return InvalidField(given.PlaceOf("role"), "it is missing");
  if (role == "function") {
    return InvalidField(given.PlaceOf("role"), "\"function\" is not supported here; \"tool\" is allowed");
  }
  message.set_role(std::move(*role));
  return absl::OkStatus();
}

absl::Status ReadToolCalls(JsonObject& given, v1::ChatMessage& message) {
  const std::optional<JsonSlice> value = given.Find("tool_calls");
  if (!value.has_value()) return absl::OkStatus();
  if (value->kind() != JsonSlice::Kind::kArray) return given.Wrong("tool_calls", *value, "an array of calls");
  if (!value->IsEmpty()) message.set_tool_calls(std::string(value->text()));
  return absl::OkStatus();
}

// What a template reads beside role and content.
absl::Status ReadExtras(JsonObject& given, v1::ChatMessage& message) {
  RUNAHEAD_ASSIGN_OR_RETURN(std::optional<std::string> name, given.String("name"));
  if (name.has_value()) message.set_name(std::move(*name));
  RUNAHEAD_ASSIGN_OR_RETURN(std::optional<std::string> call, given.String("tool_call_id"));
  if (call.has_value()) message.set_tool_call_id(std::move(*call));
  RUNAHEAD_RETURN_IF_ERROR(ReadToolCalls(given, message));
  RUNAHEAD_ASSIGN_OR_RETURN(std::optional<std::string> reasoning, given.String("reasoning"));
  RUNAHEAD_ASSIGN_OR_RETURN(std::optional<std::string> content, given.String("reasoning_content"));
  if (content.has_value()) reasoning = std::move(content);
  if (reasoning.has_value()) message.set_reasoning_content(std::move(*reasoning));
  return absl::OkStatus();
}

// Members that would change what the model reads are not left out in silence.
absl::Status RefuseInMessage(JsonObject& given) {
  for (const char* key : {"refusal", "audio", "function_call"}) {
    const std::optional<JsonSlice> value = given.Find(key);
    if (!value.has_value() || value->IsEmpty()) continue;
    return InvalidField(given.PlaceOf(key), "it is not supported here; leave it out");
  }
  given.Find("annotations");  // of an answer that is sent back: it says where its text comes from
  return absl::OkStatus();
}

absl::Status AddMessage(JsonSlice value, v1::ChatMessages& chat, std::vector<std::string>& ignored) {
  RUNAHEAD_ASSIGN_OR_RETURN(JsonObject given,
                            JsonObject::Read(value, absl::StrCat("messages[", chat.messages_size(), "]")));
  v1::ChatMessage& message = *chat.add_messages();
  RUNAHEAD_RETURN_IF_ERROR(ReadRole(given, message));
  RUNAHEAD_RETURN_IF_ERROR(ReadContent(given, message));
  RUNAHEAD_RETURN_IF_ERROR(ReadExtras(given, message));
  RUNAHEAD_RETURN_IF_ERROR(RefuseInMessage(given));
  for (const std::string& key : given.Unread()) {
    std::string name = absl::StrCat("messages[].", key);
    if (ignored.size() == kMaxIgnored) break;
    if (std::find(ignored.begin(), ignored.end(), name) == ignored.end()) ignored.push_back(std::move(name));
  }
  return absl::OkStatus();
}

absl::Status ReadMessages(JsonObject& body, v1::ChatMessages& chat, std::vector<std::string>& ignored) {
  const std::optional<JsonSlice> messages = body.Find("messages");
  if (!messages.has_value()) return InvalidField("messages", "it is missing");
  if (messages->kind() != JsonSlice::Kind::kArray) return body.Wrong("messages", *messages, "an array of messages");
  if (messages->IsEmpty()) return InvalidField("messages", "at least one is needed");
  return messages->ForElements([&](JsonSlice message) { return AddMessage(message, chat, ignored); });
}

}  // namespace

absl::Status ReadChatMembers(JsonObject& body, v1::ChatMessages& chat, std::vector<std::string>& ignored) {
  RUNAHEAD_RETURN_IF_ERROR(ReadMessages(body, chat, ignored));
  RUNAHEAD_ASSIGN_OR_RETURN(std::optional<std::string> variables,
                            body.Json("chat_template_kwargs", JsonSlice::Kind::kObject, "an object"));
  if (variables.has_value()) chat.set_template_variables(std::move(*variables));
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<bool> continues, body.Bool("continue_final_message"));
  if (continues.has_value()) chat.set_continue_final_message(*continues);
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<bool> generation, body.Bool("add_generation_prompt"));
  if (generation.has_value()) chat.set_add_generation_prompt(*generation);
  return absl::OkStatus();
}

}  // namespace runahead
