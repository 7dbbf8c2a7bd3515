// The form that a request asks for: a schema, a regular expression or a grammar, by the first byte.
#include "server/grammar/regex_form.h"
#include "server/grammar/schema_form.h"
#include "server/grammar/structure_spec.h"
#include "tests/fuzz/fuzz.h"

void runahead::Fuzz(std::string_view input) {
  if (input.empty()) return;
  constexpr StructureKind kKinds[] = {StructureKind::kJsonSchema, StructureKind::kRegex, StructureKind::kGrammar};
  const StructureSpec spec = {.kind = kKinds[static_cast<unsigned char>(input[0]) % 3],
                              .text = std::string(input.substr(1))};
  const auto checked = PrepareStructure(spec);
  if (!checked.ok()) return fuzz::CheckRefusal(checked.status(), FieldOf(spec.kind));
  // What nothing is left open in stays as it is.
  if (checked->is_json) {
    const auto again = ReadJsonSchema(checked->text);
    RUNAHEAD_CHECK(again.ok() && *again == checked->text);
  } else if (spec.kind == StructureKind::kRegex) {
    const auto once = ReadRegex(spec.text, RegexText::kPlain);
    const auto again = ReadRegex(once->text, RegexText::kPlain);
    RUNAHEAD_CHECK(again.ok() && again->text == once->text && again->written == once->written);
  }
}
