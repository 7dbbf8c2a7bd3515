#include "server/grammar/structure_spec.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "kernels/base/status_macros.h"
#include "server/grammar/grammar_form.h"
#include "server/grammar/regex_form.h"
#include "server/grammar/schema_form.h"
#include "server/tokenizer/utf8.h"

namespace runahead {
namespace {

absl::Status Refuse(const StructureSpec& spec, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(FieldOf(spec.kind), ": ", why));
}

absl::Status InField(const StructureSpec& spec, const absl::Status& status) {
  return status.ok() ? status : Refuse(spec, status.message());
}

bool IsUtf8(absl::string_view text) {
  if (text.empty()) return true;
  const Utf8Run run = FirstUtf8Run({text.data(), text.size()});
  return run.valid && run.text.size() == text.size();
}

absl::Status CheckSize(const StructureSpec& spec) {
  size_t bytes = spec.text.size();
  for (const std::string& choice : spec.choices) bytes += choice.size();
  if (bytes > kMaxStructureBytes) return Refuse(spec, absl::StrCat(bytes, " bytes are more than ", kMaxStructureBytes));
  const bool of_text = spec.kind != StructureKind::kJsonObject && spec.kind != StructureKind::kChoice;
  if (of_text && spec.text.empty()) return Refuse(spec, "it is empty");
  if (spec.kind != StructureKind::kJsonSchema && !(spec.before.empty() && spec.behind.empty())) {
    return absl::InvalidArgumentError("structure.before: before and behind go with json_schema only");
  }
  for (const auto& [field, text] : {std::pair("before", &spec.before), std::pair("behind", &spec.behind)}) {
    if (text->size() > kMaxStructureTagBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("structure.", field, ": ", text->size(), " bytes are more than ", kMaxStructureTagBytes));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckChoices(const StructureSpec& spec) {
  if (spec.choices.empty()) return Refuse(spec, "at least one text is needed");
  if (spec.choices.size() > static_cast<size_t>(kMaxStructureChoices)) {
    return Refuse(spec, absl::StrCat(spec.choices.size(), " texts are more than ", kMaxStructureChoices));
  }
  for (size_t i = 0; i < spec.choices.size(); ++i) {
    const std::string& choice = spec.choices[i];
    if (choice.empty() || !IsUtf8(choice)) {
      return Refuse(spec, absl::StrCat("text ", i, choice.empty() ? " is empty" : " is no UTF-8"));
    }
  }
  return absl::OkStatus();
}

// As a text of a grammar.
std::string InGrammar(absl::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      absl::StrAppend(&quoted, "\\", absl::string_view(&c, 1));
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&quoted, "\\u%04x", c);
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string GrammarOfChoices(const std::vector<std::string>& choices) {
  std::string grammar = "root ::= ";
  for (const std::string& choice : choices) {
    absl::StrAppend(&grammar, &choice == &choices.front() ? "" : " | ", InGrammar(choice));
  }
  return grammar;
}

// Of JSON: how deep its arrays and objects are.
int DepthOf(absl::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_text = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_text && c == '\\') {
      ++i;
      continue;
    }
    if (c == '"') in_text = !in_text;
    if (in_text) continue;
    if (c == '{' || c == '[') deepest = std::max(deepest, ++depth);
    if (c == '}' || c == ']') --depth;
  }
  return deepest;
}

absl::StatusOr<std::string> SchemaOf(const StructureSpec& spec) {
  if (DepthOf(spec.text) > kMaxStructureDepth) {
    return Refuse(spec, absl::StrCat("its arrays and objects are deeper than ", kMaxStructureDepth));
  }
  absl::StatusOr<std::string> schema = ReadJsonSchema(spec.text);
  if (!schema.ok()) return Refuse(spec, schema.status().message());
  return schema;
}

absl::StatusOr<std::string> GrammarOf(const StructureSpec& spec) {
  if (spec.kind == StructureKind::kChoice) {
    RUNAHEAD_RETURN_IF_ERROR(CheckChoices(spec));
    return GrammarOfChoices(spec.choices);
  }
  if (spec.kind == StructureKind::kRegex) {
    const absl::StatusOr<RegexForm> regex = ReadRegex(spec.text, RegexText::kPlain);
    if (!regex.ok()) return Refuse(spec, regex.status().message());
    return absl::StrCat("root ::= Regex(", InGrammar(regex->text), ")");
  }
  if (!IsUtf8(spec.text)) return Refuse(spec, "it is no UTF-8");
  RUNAHEAD_RETURN_IF_ERROR(InField(spec, CheckGrammar(spec.text)));
  return spec.text;
}

}  // namespace

const char* FieldOf(StructureKind kind) {
  switch (kind) {
    case StructureKind::kJsonSchema:
      return "structure.json_schema";
    case StructureKind::kJsonObject:
      return "structure.json_object";
    case StructureKind::kRegex:
      return "structure.regex";
    case StructureKind::kGrammar:
      return "structure.grammar";
    case StructureKind::kChoice:
      break;
  }
  return "structure.choice";
}

absl::StatusOr<CheckedStructure> PrepareStructure(const StructureSpec& spec) {
  RUNAHEAD_RETURN_IF_ERROR(CheckSize(spec));
  CheckedStructure checked;
  checked.is_json = spec.kind == StructureKind::kJsonSchema || spec.kind == StructureKind::kJsonObject;
  if (spec.kind == StructureKind::kJsonObject) {
    checked.text = R"({"type":"object","additionalProperties":{}})";
  } else if (checked.is_json) {
    RUNAHEAD_ASSIGN_OR_RETURN(checked.text, SchemaOf(spec));
    if (!spec.before.empty()) checked.before = absl::StrCat("root ::= ", InGrammar(spec.before));
    if (!spec.behind.empty()) checked.behind = absl::StrCat("root ::= ", InGrammar(spec.behind));
  } else {
    RUNAHEAD_ASSIGN_OR_RETURN(checked.text, GrammarOf(spec));
  }
  return checked;
}

absl::Status CheckStructure(const StructureSpec& spec) {
  return PrepareStructure(spec).status();
}

}  // namespace runahead
