// The config.json of a Hugging Face folder.
#include "tests/fuzz/fuzz.h"
#include "worker/format/hf_config.h"
#include "worker/format/hf_names.h"

void runahead::Fuzz(std::string_view input) {
  const auto config = ParseJson({input.data(), input.size()}, "config.json");
  if (!config.ok()) return fuzz::CheckRefusal(config.status(), "config.json");
  MetadataWriter metadata;
  const auto model = TranslateHfConfig(*config, "config.json", metadata);
  if (!model.ok()) return fuzz::CheckRefusal(model.status(), "config.json");
  RUNAHEAD_CHECK(metadata.values().contains("general.architecture"));
  // Who has no tensor lacks one, and it has a name.
  const HfNames names(model->architecture, model->layers, model->tied, model->biases);
  const auto missing = names.FirstMissing([](const std::string&) { return false; });
  RUNAHEAD_CHECK(missing.has_value() && !missing->name.empty() && !missing->stored.empty());
  RUNAHEAD_CHECK(names.Of(missing->stored).name == missing->name);
}
