#include "server/gateway/openai/other_routes.h"

#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/gateway/openai/chat_messages.h"
#include "server/gateway/openai/json_object.h"
#include "server/gateway/openai/json_text.h"
#include "server/gateway/openai/request_members.h"
#include "server/gateway/openai/tool_members.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

std::string ModelJson(const v1::Model& model, const std::string& id, int64_t created) {
  return absl::StrCat("{\"id\":", JsonString(id), ",\"object\":\"model\",\"created\":", created,
                      ",\"owned_by\":\"runahead\",\"root\":", JsonString(model.name()),
                      ",\"parent\":null,\"max_model_len\":", model.context_length(),
                      ",\"runahead\":{\"dtype\":", JsonString(model.dtype()),
                      ",\"vocabulary_size\":", model.vocabulary_size(), ",\"layers\":", model.layers(),
                      ",\"prefill_workers\":", model.prefill_workers(), ",\"decode_workers\":", model.decode_workers(),
                      "}}");
}

// Of vLLM's members of /tokenize, those that would ask for what is not done.
absl::Status RefuseInTokenize(JsonObject& body) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<bool> texts, body.Bool("return_token_strs"));
  if (texts.value_or(false)) return InvalidField("return_token_strs", "it is not supported here; leave it out");
  return absl::OkStatus();
}

absl::Status ReadTokenizedText(JsonObject& body, v1::TokenizeRequest& request) {
  RUNAHEAD_ASSIGN_OR_RETURN(std::optional<std::string> prompt, body.String("prompt"));
  if (!prompt.has_value()) return InvalidField("prompt", "it is missing; one of prompt and messages must be given");
  request.set_text(std::move(*prompt));
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<bool> special, body.Bool("add_special_tokens"));
  request.set_without_begin(!special.value_or(true));
  return absl::OkStatus();
}

absl::Status ReadTokenizedChat(JsonObject& body, v1::TokenizeRequest& request) {
  std::vector<std::string> ignored;
  RUNAHEAD_RETURN_IF_ERROR(ReadChatMembers(body, *request.mutable_chat(), ignored));
  RUNAHEAD_RETURN_IF_ERROR(ReadTools(body, *request.mutable_chat()).status());
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<bool> special, body.Bool("add_special_tokens"));
  if (!special.value_or(false)) return absl::OkStatus();
  return InvalidField("add_special_tokens", "special tokens of a chat come from its template; leave it out");
}

}  // namespace

std::string ModelsJson(const v1::ListModelsResponse& models, const DoorFacts& facts, int64_t created) {
  std::string data;
  for (const v1::Model& model : models.models()) {
    AddToJson(data, ModelJson(model, model.name(), created));
    for (const std::string& alias : facts.aliases) AddToJson(data, ModelJson(model, alias, created));
  }
  return absl::StrCat("{\"object\":\"list\",\"data\":[", data, "]}");
}

absl::StatusOr<std::string> OneModelJson(const v1::ListModelsResponse& models, const DoorFacts& facts, int64_t created,
                                         absl::string_view id) {
  for (const v1::Model& model : models.models()) {
    if (id == model.name()) return ModelJson(model, model.name(), created);
    for (const std::string& alias : facts.aliases) {
      if (id == alias) return ModelJson(model, alias, created);
    }
  }
  return FieldError(absl::StatusCode::kNotFound, "model", "no model of this name is served here; see /v1/models");
}

absl::StatusOr<v1::TokenizeRequest> ReadTokenizeRequest(absl::string_view body, const DoorFacts& facts) {
  RUNAHEAD_ASSIGN_OR_RETURN(JsonObject members, JsonObject::ReadBody(body));
  v1::TokenizeRequest request;
  RUNAHEAD_ASSIGN_OR_RETURN(ModelMember model, ReadModel(members, facts));
  request.set_model(std::move(model.asked));
  RUNAHEAD_RETURN_IF_ERROR(RefuseInTokenize(members));
  if (members.Find("messages").has_value()) {
    if (members.Find("prompt").has_value()) return InvalidField("prompt", "it does not go with messages");
    RUNAHEAD_RETURN_IF_ERROR(ReadTokenizedChat(members, request));
  } else {
    RUNAHEAD_RETURN_IF_ERROR(ReadTokenizedText(members, request));
  }
  return request;
}

std::string TokenizeJson(const v1::TokenizeResponse& response, int context_length) {
  std::string ids;
  for (const int32_t id : response.ids()) AddToJson(ids, absl::StrCat(id));
  return absl::StrCat("{\"count\":", response.ids_size(), ",\"max_model_len\":", context_length, ",\"tokens\":[", ids,
                      "]}");
}

absl::StatusOr<v1::DetokenizeRequest> ReadDetokenizeRequest(absl::string_view body, const DoorFacts& facts) {
  RUNAHEAD_ASSIGN_OR_RETURN(JsonObject members, JsonObject::ReadBody(body));
  v1::DetokenizeRequest request;
  RUNAHEAD_ASSIGN_OR_RETURN(ModelMember model, ReadModel(members, facts));
  request.set_model(std::move(model.asked));
  if (!members.Find("tokens").has_value()) return InvalidField("tokens", "it is missing; an array of ids is allowed");
  RUNAHEAD_RETURN_IF_ERROR(members.Integers("tokens", 0, std::numeric_limits<int32_t>::max(),
                                            [&request](int64_t id) { request.add_ids(static_cast<int32_t>(id)); }));
  return request;
}

std::string DetokenizeJson(const v1::DetokenizeResponse& response) {
  return absl::StrCat("{\"prompt\":", JsonString(response.text()), "}");
}

}  // namespace runahead
