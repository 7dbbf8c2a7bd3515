// What a model's files say about how it likes to be asked, and how it writes: for clients. The router does not use it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runahead/v1/inference.pb.h"
#include "worker/format/model_file.h"

namespace runahead {

struct ModelAdvice {
  std::string tool_format;       // "hermes", "llama3", "json" with an example, or empty; as v1::Model has them
  std::string reasoning_format;  // "think", "think_open", or empty
  v1::SamplingParams sampling;   // of generation_config.json; what it does not say is absent
};

// Of the chat template and, in a folder, generation_config.json. What cannot be read recommends nothing, and is said in
// the log.
ModelAdvice ReadModelAdvice(const ModelFile& file);

// What the words of a chat template say of how its model calls tools, "hermes", "llama3" or nothing, and thinks before
// it answers. What the template does says more of calls: ChatTemplate::ToolFormat.
std::string ToolFormatOfTemplate(absl::string_view chat_template);
std::string ReasoningFormatOfTemplate(absl::string_view chat_template);

// generation_config.json, as a text; `name` stands for it in errors. INVALID_ARGUMENT where it is no JSON, or has other
// types, or values that no request may carry.
absl::StatusOr<v1::SamplingParams> ParseGenerationConfig(absl::string_view text, const std::string& name);

}  // namespace runahead
