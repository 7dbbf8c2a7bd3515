#include "client/generate/structure_flags.h"

#include <CLI/CLI.hpp>

#include "client/base/parse.h"
#include "client/base/typed_flags.h"
#include "kernels/base/status_macros.h"
#include "server/base/text_file.h"
#include "server/rpc/transport_options.h"

namespace runahead {
namespace {

// A schema, or the file that has one: a schema is an object, or true.
absl::StatusOr<std::string> SchemaOf(const std::string& typed) {
  const size_t begin = typed.find_first_not_of(" \t\r\n");
  const bool is_schema = begin != std::string::npos && (typed[begin] == '{' || typed.substr(begin) == "true");
  if (is_schema) return typed;
  return ReadTextFile(typed, kMaxMessageBytes);
}

absl::Status CheckText(const std::string& flag, const absl::StatusOr<std::string>& text) {
  RUNAHEAD_RETURN_IF_ERROR(InFlag(flag, text.status()));
  return InFlag(flag, CheckUtf8(*text));
}

}  // namespace

void StructureFlags::AddTo(CLI::App& app) {
  app.option_defaults()->group("Form of the answer (at most one kind of these)");
  app.add_option("--json-schema", json_schema, "JSON that this JSON schema, or the one in this file, accepts")
      ->type_name("TEXT|FILE");
  app.add_flag("--json-object", json_object, "Any JSON object");
  app.add_option("--regex", regex, "Text that this regular expression matches as a whole")->type_name("TEXT");
  app.add_option("--grammar", grammar_file, "Text of the grammar in this file, whose first rule is root")
      ->type_name("FILE");
  AddRepeated(app, "--choice", &choices, "This text, or that of another --choice", "TEXT");
  app.option_defaults()->group("Options");
}

absl::Status StructureFlags::FillIn(v1::GenerateRequest& request) const {
  const int kinds = (json_schema ? 1 : 0) + (json_object ? 1 : 0) + (regex ? 1 : 0) + (grammar_file ? 1 : 0) +
                    (choices.empty() ? 0 : 1);
  if (kinds == 0) return absl::OkStatus();
  if (kinds > 1) {
    return absl::InvalidArgumentError(
        "more than one form of the answer: give at most one of --json-schema, --json-object, --regex, --grammar and "
        "--choice");
  }
  v1::Structure& structure = *request.mutable_structure();
  if (json_object) structure.set_json_object(true);
  if (json_schema) {
    const absl::StatusOr<std::string> schema = SchemaOf(*json_schema);
    RUNAHEAD_RETURN_IF_ERROR(CheckText("--json-schema", schema));
    structure.set_json_schema(*schema);
  }
  if (regex) {
    RUNAHEAD_RETURN_IF_ERROR(CheckText("--regex", *regex));
    structure.set_regex(*regex);
  }
  if (grammar_file) {
    const absl::StatusOr<std::string> grammar = ReadTextFile(*grammar_file, kMaxMessageBytes);
    RUNAHEAD_RETURN_IF_ERROR(CheckText("--grammar", grammar));
    structure.set_grammar(*grammar);
  }
  for (const std::string& choice : choices) {
    RUNAHEAD_RETURN_IF_ERROR(CheckText("--choice", choice));
    structure.mutable_choice()->add_texts(choice);
  }
  return absl::OkStatus();
}

}  // namespace runahead
