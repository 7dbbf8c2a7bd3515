#include "server/router/model_info.h"

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "server/base/printable.h"
#include "server/router/model_advice.h"

namespace runahead {

absl::StatusOr<ModelInfo> ReadModelInfo(const ModelFile& file) {
  ModelInfo model;
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string architecture, file.GetString("general.architecture"));
  if (file.Has("general.name")) {
    RUNAHEAD_ASSIGN_OR_RETURN(model.name, file.GetString("general.name"));
  }
  if (model.name.empty()) model.name = architecture;
  RUNAHEAD_ASSIGN_OR_RETURN(const uint64_t context, file.GetUint(absl::StrCat(architecture, ".context_length")));
  if (context < 1 || context > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": ", architecture, ".context_length: ", context,
                                                   " is not a length that can be served"));
  }
  model.context_length = static_cast<int>(context);
  RUNAHEAD_ASSIGN_OR_RETURN(const int64_t vocabulary, VocabularySize(file));
  model.vocabulary_size = static_cast<int>(vocabulary);
  model.fingerprint = absl::StrFormat("%016x", file.fingerprint());
  model.tokenizer_fingerprint = absl::StrFormat("%016x", file.tokenizer_fingerprint());
  model.chat_template_fingerprint = absl::StrFormat("%016x", file.chat_template_fingerprint());
  model.alias = OneLine(AliasOf(file.path()));
  model.advice = ReadModelAdvice(file);
  return model;
}

}  // namespace runahead
