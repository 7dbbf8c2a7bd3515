#include "client/generate/vocabulary_source.h"

#include <CLI/CLI.hpp>

#include "client/base/parse.h"
#include "server/base/address.h"

namespace runahead {

void VocabularySource::AddTo(CLI::App& app) {
  app.add_option("--model", model, "GGUF file, or Hugging Face folder, of the model")->type_name("PATH");
  router.AddTo(app, /*required=*/false);
}

absl::Status VocabularySource::Check() const {
  if (model.empty() == router.address.empty()) {
    return absl::InvalidArgumentError("give exactly one of --model PATH and --router ADDR");
  }
  return by_model() ? absl::OkStatus() : InFlag("--router", ParseHostPort(router.address).status());
}

}  // namespace runahead
