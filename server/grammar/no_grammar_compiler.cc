#include "server/grammar/grammar_compiler.h"

namespace runahead {

absl::Status StructuredOutputStatus() {
  return absl::UnimplementedError(
      "structure: this build has no structured output: xgrammar's sources were not there when it was configured. "
      "deploy/xgrammar fetches them; configure anew then, with -DRUNAHEAD_STRUCTURE=ON to be told why it fails");
}

absl::StatusOr<std::unique_ptr<GrammarCompiler>> GrammarCompiler::Create(const Tokenizer& /*tokenizer*/,
                                                                         const GrammarCompilerOptions& /*options*/) {
  return StructuredOutputStatus();
}

}  // namespace runahead
