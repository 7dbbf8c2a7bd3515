#include "server/rpc/structure_proto.h"

#include "server/rpc/status.h"

namespace runahead {

absl::StatusOr<StructureSpec> StructureFromProto(const v1::Structure& structure) {
  StructureSpec spec;
  spec.before = structure.before();
  spec.behind = structure.behind();
  switch (structure.form_case()) {
    case v1::Structure::kJsonSchema:
      spec.kind = StructureKind::kJsonSchema;
      spec.text = structure.json_schema();
      return spec;
    case v1::Structure::kJsonObject:
      if (!structure.json_object()) break;
      spec.kind = StructureKind::kJsonObject;
      return spec;
    case v1::Structure::kRegex:
      spec.kind = StructureKind::kRegex;
      spec.text = structure.regex();
      return spec;
    case v1::Structure::kGrammar:
      spec.kind = StructureKind::kGrammar;
      spec.text = structure.grammar();
      return spec;
    case v1::Structure::kChoice:
      spec.kind = StructureKind::kChoice;
      spec.choices.assign(structure.choice().texts().begin(), structure.choice().texts().end());
      return spec;
    case v1::Structure::FORM_NOT_SET:
      break;
  }
  return InvalidField("structure", "one of json_schema, json_object, regex, grammar and choice must be given");
}

v1::Structure StructureToProto(const StructureSpec& spec) {
  v1::Structure structure;
  if (!spec.before.empty()) structure.set_before(spec.before);
  if (!spec.behind.empty()) structure.set_behind(spec.behind);
  switch (spec.kind) {
    case StructureKind::kJsonSchema:
      structure.set_json_schema(spec.text);
      break;
    case StructureKind::kJsonObject:
      structure.set_json_object(true);
      break;
    case StructureKind::kRegex:
      structure.set_regex(spec.text);
      break;
    case StructureKind::kGrammar:
      structure.set_grammar(spec.text);
      break;
    case StructureKind::kChoice:
      structure.mutable_choice()->mutable_texts()->Assign(spec.choices.begin(), spec.choices.end());
      break;
  }
  return structure;
}

}  // namespace runahead
