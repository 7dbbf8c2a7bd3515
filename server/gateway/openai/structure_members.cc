#include "server/gateway/openai/structure_members.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

// The forms that one request asks for: one is allowed.
class AskedForms {
 public:
  explicit AskedForms(v1::GenerateRequest& request) : request_(request) {}

  absl::StatusOr<v1::Structure*> Add(const std::string& place) {
    if (request_.has_structure()) {
      return InvalidField(place, absl::StrCat("the form of the answer is given by ", first_, " already"));
    }
    first_ = place;
    return request_.mutable_structure();
  }

  const std::string& asked() const { return first_; }  // by which member; empty: by none

 private:
  v1::GenerateRequest& request_;
  std::string first_;
};

// A schema comes as JSON, or as a text that is JSON.
absl::Status ReadSchema(JsonObject& from, absl::string_view key, AskedForms& forms) {
  const std::optional<JsonSlice> value = from.Find(key);
  if (!value.has_value()) return absl::OkStatus();
  RUNAHEAD_ASSIGN_OR_RETURN(v1::Structure* const structure, forms.Add(from.PlaceOf(key)));
  const bool is_text = value->kind() == JsonSlice::Kind::kString;
  structure->set_json_schema(is_text ? value->String() : std::string(value->text()));
  return absl::OkStatus();
}

absl::Status ReadObject(JsonObject& from, absl::string_view key, AskedForms& forms) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<bool> asked, from.Bool(key));
  if (!asked.value_or(false)) return absl::OkStatus();
  RUNAHEAD_ASSIGN_OR_RETURN(v1::Structure* const structure, forms.Add(from.PlaceOf(key)));
  structure->set_json_object(true);
  return absl::OkStatus();
}

absl::Status ReadRegexAndGrammar(JsonObject& from, const std::string& prefix, AskedForms& forms) {
  RUNAHEAD_ASSIGN_OR_RETURN(std::optional<std::string> regex, from.String(prefix + "regex"));
  if (regex.has_value()) {
    RUNAHEAD_ASSIGN_OR_RETURN(v1::Structure* const structure, forms.Add(from.PlaceOf(prefix + "regex")));
    structure->set_regex(*std::move(regex));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(std::optional<std::string> grammar, from.String(prefix + "grammar"));
  if (!grammar.has_value()) return absl::OkStatus();
  RUNAHEAD_ASSIGN_OR_RETURN(v1::Structure* const structure, forms.Add(from.PlaceOf(prefix + "grammar")));
  structure->set_grammar(*std::move(grammar));
  return absl::OkStatus();
}

absl::Status ReadChoice(JsonObject& from, absl::string_view key, AskedForms& forms) {
  const std::optional<JsonSlice> value = from.Find(key);
  if (!value.has_value()) return absl::OkStatus();
  if (value->kind() != JsonSlice::Kind::kArray) return from.Wrong(key, *value, "an array of strings");
  RUNAHEAD_ASSIGN_OR_RETURN(v1::Structure* const structure, forms.Add(from.PlaceOf(key)));
  v1::Structure::Choices& choices = *structure->mutable_choice();
  return value->ForElements([&](JsonSlice element) {
    if (element.kind() != JsonSlice::Kind::kString) {
      return WrongValue(absl::StrCat(from.PlaceOf(key), "[", choices.texts_size(), "]"), element, "a string");
    }
    choices.add_texts(element.String());
    return absl::OkStatus();
  });
}

// Members whose names begin with `prefix`.
absl::Status ReadForms(JsonObject& from, const std::string& prefix, AskedForms& forms) {
  RUNAHEAD_RETURN_IF_ERROR(ReadSchema(from, prefix + "json", forms));
  RUNAHEAD_RETURN_IF_ERROR(ReadObject(from, prefix + "json_object", forms));
  RUNAHEAD_RETURN_IF_ERROR(ReadRegexAndGrammar(from, prefix, forms));
  return ReadChoice(from, prefix + "choice", forms);
}

absl::Status ReadStructuredOutputs(JsonObject& body, AskedForms& forms) {
  const std::optional<JsonSlice> value = body.Find("structured_outputs");
  if (!value.has_value()) return absl::OkStatus();
  RUNAHEAD_ASSIGN_OR_RETURN(JsonObject outputs, JsonObject::Read(*value, "structured_outputs"));
  // How it is done elsewhere; here JSON always comes on one line, and nothing falls back to less.
  for (const char* key : {"backend", "disable_fallback", "disable_any_whitespace", "whitespace_pattern",
                          "disable_additional_properties"}) {
    outputs.Find(key);
  }
  RUNAHEAD_RETURN_IF_ERROR(ReadForms(outputs, "", forms));
  for (const std::string& key : outputs.Unread()) {
    if (outputs.Find(key).has_value()) {
      return InvalidField(outputs.PlaceOf(key), "it is not supported here; leave it out");
    }
  }
  return absl::OkStatus();
}

// {"type": "json_schema", "json_schema": {"name", "schema", "strict"}}. It is kept strictly in any case.
absl::Status ReadNamedSchema(JsonObject& format, AskedForms& forms) {
  const std::optional<JsonSlice> value = format.Find("json_schema");
  if (!value.has_value()) return InvalidField("response_format.json_schema", "it is missing");
  RUNAHEAD_ASSIGN_OR_RETURN(JsonObject named, JsonObject::Read(*value, "response_format.json_schema"));
  for (const char* key : {"name", "description"}) RUNAHEAD_RETURN_IF_ERROR(named.String(key).status());
  RUNAHEAD_RETURN_IF_ERROR(named.Bool("strict").status());
  if (!named.Find("schema").has_value()) return InvalidField("response_format.json_schema.schema", "it is missing");
  return ReadSchema(named, "schema", forms);
}

absl::Status ReadResponseFormat(JsonObject& body, AskedForms& forms) {
  const std::optional<JsonSlice> value = body.Find("response_format");
  if (!value.has_value()) return absl::OkStatus();
  RUNAHEAD_ASSIGN_OR_RETURN(JsonObject format, JsonObject::Read(*value, "response_format"));
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<std::string> type, format.String("type"));
  if (type == "text") return absl::OkStatus();
  if (type == "json_schema") return ReadNamedSchema(format, forms);
  if (type != "json_object") {
    return InvalidField("response_format.type", "it is none of \"text\", \"json_object\" and \"json_schema\"");
  }
  RUNAHEAD_ASSIGN_OR_RETURN(v1::Structure* const structure, forms.Add("response_format"));
  structure->set_json_object(true);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReadStructureMembers(JsonObject& body, v1::GenerateRequest& request) {
  AskedForms forms(request);
  RUNAHEAD_RETURN_IF_ERROR(ReadResponseFormat(body, forms));
  RUNAHEAD_RETURN_IF_ERROR(ReadStructuredOutputs(body, forms));
  RUNAHEAD_RETURN_IF_ERROR(ReadForms(body, "guided_", forms));
  return forms.asked();
}

}  // namespace runahead
