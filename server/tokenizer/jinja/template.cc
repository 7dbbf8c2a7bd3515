#include "server/tokenizer/jinja/template.h"

#include "kernels/base/status_macros.h"
#include "server/tokenizer/jinja/evaluator.h"
#include "server/tokenizer/jinja/lexer.h"

namespace runahead::jinja {

absl::StatusOr<Template> Template::Parse(std::string_view source) {
  Template result;
  result.source_ = NormalizeLineEnds(source);
  RUNAHEAD_ASSIGN_OR_RETURN(result.root_, ParseTemplate(result.source_));
  return result;
}

absl::StatusOr<Text> Template::Render(std::vector<std::pair<std::string, Value>> variables, absl::Time now,
                                      KeepGoing keep_going, const Limits& limits) const {
  Rendering rendering(source_, now, keep_going, limits);
  Scope scope;
  for (auto& [name, value] : variables) scope.names[name] = std::move(value);
  Evaluator evaluator(rendering);
  evaluator.Run(*root_, scope);
  if (!rendering.ok()) return rendering.status();
  return std::move(evaluator.output());
}

}  // namespace runahead::jinja
