// A model that has a tokenizer.json and nothing else.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tests/testing/gguf_builder.h"
#include "tests/testing/parsed_gguf.h"

namespace runahead {

// `config` is its tokenizer_config.json, none where it is empty. Messages call the model test.gguf.
inline absl::StatusOr<std::shared_ptr<const ModelFile>> ModelOfTokenizerJson(const std::string& json,
                                                                             const std::string& config = "") {
  GgufBuilder builder;
  builder.AddString("tokenizer.huggingface.json", json);
  if (!config.empty()) builder.AddString("tokenizer.huggingface.config", config);
  return ParseGguf(builder.Build());
}

}  // namespace runahead
