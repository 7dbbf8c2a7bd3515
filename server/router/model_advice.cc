#include "server/router/model_advice.h"

#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/logging.h"
#include "server/base/text_file.h"
#include "server/tokenizer/json_view.h"

namespace runahead {
namespace {

constexpr int64_t kMostConfigBytes = int64_t{1} << 20;

// A number of the file; nothing where it is not there. What no request may carry is refused.
absl::StatusOr<std::optional<double>> Number(const JsonView& json, absl::string_view key, double min, double max) {
  if (!json.Has(key)) return std::nullopt;
  RUNAHEAD_ASSIGN_OR_RETURN(const JsonView value, json.Get(key));
  RUNAHEAD_ASSIGN_OR_RETURN(const double number, value.Number());
  if (number >= min && number <= max) return number;
  return value.Error(number, " is not from ", min, " to ", max);
}

// Nothing where there is no such file.
absl::StatusOr<v1::SamplingParams> ReadSampling(const ModelFile& file) {
  if (file.container() != ModelFile::Container::kFolder) return v1::SamplingParams();
  const std::string path = absl::StrCat(file.path(), "/generation_config.json");
  const absl::StatusOr<std::string> text = ReadTextFile(path, kMostConfigBytes);
  if (absl::IsNotFound(text.status())) return v1::SamplingParams();
  RUNAHEAD_RETURN_IF_ERROR(text.status());
  return ParseGenerationConfig(*text, path);
}

}  // namespace

std::string ToolFormatOfTemplate(absl::string_view chat_template) {
  if (absl::StrContains(chat_template, "<tool_call>")) return "hermes";
  const bool llama3 = absl::StrContains(chat_template, "<|python_tag|>") ||
                      absl::StrContains(chat_template, "\"parameters\": dictionary");
  return llama3 ? "llama3" : "";
}

// A template that begins the answer with the tag does so behind its last word of add_generation_prompt.
std::string ReasoningFormatOfTemplate(absl::string_view chat_template) {
  if (!absl::StrContains(chat_template, "<think>") && !absl::StrContains(chat_template, "</think>")) return "";
  const size_t prompt = chat_template.rfind("add_generation_prompt");
  const absl::string_view end = prompt == absl::string_view::npos ? "" : chat_template.substr(prompt);
  return absl::StrContains(end, "<think>") && !absl::StrContains(end, "</think>") ? "think_open" : "think";
}

absl::StatusOr<v1::SamplingParams> ParseGenerationConfig(absl::string_view text, const std::string& name) {
  RUNAHEAD_ASSIGN_OR_RETURN(const JsonView json, JsonView::Parse(text, name));
  v1::SamplingParams sampling;
  RUNAHEAD_ASSIGN_OR_RETURN(const bool samples, json.GetBool("do_sample", true));
  if (!samples) {
    sampling.set_temperature(0);
    return sampling;
  }
  RUNAHEAD_ASSIGN_OR_RETURN(const auto temperature, Number(json, "temperature", 0, 100));
  RUNAHEAD_ASSIGN_OR_RETURN(const auto top_p, Number(json, "top_p", 1e-6, 1));
  RUNAHEAD_ASSIGN_OR_RETURN(const auto top_k, Number(json, "top_k", 0, 1 << 30));
  RUNAHEAD_ASSIGN_OR_RETURN(const auto min_p, Number(json, "min_p", 0, 0.999999));
  RUNAHEAD_ASSIGN_OR_RETURN(const auto repetition, Number(json, "repetition_penalty", 1e-6, 10));
  if (temperature) sampling.set_temperature(static_cast<float>(*temperature));
  if (top_p) sampling.set_top_p(static_cast<float>(*top_p));
  if (top_k) sampling.set_top_k(static_cast<int32_t>(*top_k));
  if (min_p) sampling.set_min_p(static_cast<float>(*min_p));
  if (repetition) sampling.set_repetition_penalty(static_cast<float>(*repetition));
  return sampling;
}

ModelAdvice ReadModelAdvice(const ModelFile& file) {
  ModelAdvice advice;
  std::string templates;
  for (const char* const key : {"tokenizer.chat_template", "tokenizer.chat_template.tool_use"}) {
    if (!file.Has(key)) continue;
    if (const absl::StatusOr<std::string> text = file.GetString(key); text.ok()) absl::StrAppend(&templates, *text);
  }
  advice.tool_format = ToolFormatOfTemplate(templates);
  advice.reasoning_format = ReasoningFormatOfTemplate(templates);
  absl::StatusOr<v1::SamplingParams> sampling = ReadSampling(file);
  if (!sampling.ok()) LogWarning("model", "nothing is recommended for sampling: ", sampling.status().message());
  if (sampling.ok()) advice.sampling = *std::move(sampling);
  return advice;
}

}  // namespace runahead
