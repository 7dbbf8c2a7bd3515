#include "client/models/inspection_output.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/device.h"
#include "server/base/printable.h"

namespace runahead {
namespace {

using Json = nlohmann::ordered_json;

std::string SizeText(size_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  if (mib < 10) return absl::StrFormat("%.1f MiB", mib);
  return mib < 1024 ? absl::StrFormat("%.0f MiB", mib) : absl::StrFormat("%.1f GiB", mib / 1024);
}

std::string CountText(int64_t count) {
  const double millions = static_cast<double>(count) / 1e6;
  return millions < 1000 ? absl::StrFormat("%.3g million", millions) : absl::StrFormat("%.3g billion", millions / 1000);
}

// "15 of 18 see the last 512 tokens"; empty: all see all.
std::string WindowsText(const ModelConfig& config) {
  int64_t window = 0;
  for (const int64_t of_layer : config.windows) window = std::max(window, of_layer);
  if (window == 0) return "";
  const auto seen = std::count_if(config.windows.begin(), config.windows.end(), [](int64_t w) { return w > 0; });
  return absl::StrCat(", ", seen, " of them see the last ", window, " tokens");
}

std::string StoredText(const Inspection& inspection) {
  std::string text;
  size_t bytes = 0;
  for (const Inspection::Stored& stored : inspection.stored) {
    absl::StrAppend(&text, stored.type, " ", stored.tensors, ", ");
    bytes += stored.bytes;
  }
  return absl::StrCat(text, "in all ", SizeText(bytes));
}

void AppendLine(std::string* text, const char* what, const std::string& line) {
  absl::StrAppendFormat(text, "  %-14s %s\n", what, line);
}

void AppendConfig(const Inspection& inspection, std::string* text) {
  const ModelConfig& config = *inspection.config;
  AppendLine(text, "name", OneLine(config.name));
  AppendLine(text, "context", absl::StrCat(config.context_length, " tokens"));
  AppendLine(text, "layers", absl::StrCat(config.layers, WindowsText(config)));
  AppendLine(text, "heads", absl::StrCat(config.heads, " of ", config.head_dim, ", ", config.kv_heads, " of KV"));
  AppendLine(text, "widths",
             absl::StrCat("hidden ", config.hidden, ", MLP ", config.ffn, ", vocabulary ", config.vocab,
                          inspection.tied ? " (the head is the embedding)" : ""));
  if (inspection.plan) AppendLine(text, "parameters", CountText(inspection.plan->elements()));
}

void AppendWords(const Inspection& inspection, std::string* text) {
  const Inspection::Words& words = *inspection.words;
  const int64_t beyond = inspection.config ? words.tokens - inspection.config->vocab : 0;
  AppendLine(text, "tokenizer",
             absl::StrCat(words.kind, ", ", words.tokens, " tokens",
                          beyond > 0   ? absl::StrCat(" (the last ", beyond, " have no row in the model)")
                          : beyond < 0 ? absl::StrCat(" (the model's last ", -beyond, " ids have no text)")
                                       : "",
                          words.adds_bos ? absl::StrCat(", texts begin with ", OneLine(words.bos)) : "",
                          words.eos.empty() ? "" : absl::StrCat(", answers end with ", OneLine(words.eos))));
  AppendLine(text, "chats",
             inspection.chat_template.ok() ? "by the model's template" : OneLine(inspection.chat_template.message()));
}

std::string Where(const MemoryNeed& need) {
  return absl::StrCat(need.dtype, need.on_gpu ? " on a GPU" : "");
}

void AppendMemory(const Inspection& inspection, int64_t context, int64_t batch, std::string* text) {
  absl::StrAppend(text, "Memory, about, for prompts and answers of ", context, " tokens together, ", batch,
                  batch == 1 ? " sequence" : " sequences", " decoded at once:\n");
  absl::StrAppendFormat(text, "  %-14s %22s %22s %22s %12s\n", "dtype", "prefill worker", "decode worker",
                        "both in one", "KV a token");
  for (const MemoryNeed& need : MemoryNeeds(inspection, context, batch)) {
    const auto sum = [](size_t weights, size_t kv) { return absl::StrCat(SizeText(weights), " + ", SizeText(kv)); };
    absl::StrAppendFormat(text, "  %-14s %22s %22s %22s %8.1f KiB\n", Where(need),
                          sum(need.prefill_weights, need.prefill_kv), sum(need.decode_weights, need.decode_kv),
                          sum(need.both_weights, need.prefill_kv + need.decode_kv),
                          static_cast<double>(need.kv_per_token) / 1024);
  }
  absl::StrAppend(text, "  (weights + KV; a worker takes 50 to 150 MiB beside them. dtype `auto` takes ",
                  inspection.quantised ? "int8 on CPUs without AMX, bf16 on those with it" : "bf16 or f32 on CPUs",
                  " and on GPUs bf16.", inspection.takes_int8.ok() ? "" : " No matrix is quantised: int8 is refused.",
                  ")\n");
  if (inspection.takes_int8.ok() && inspection.on_cpus.ok()) {
    const std::string left_out = LeftOutOfInt8(*inspection.plan, kUsePrefill | kUseDecode);
    if (!left_out.empty()) absl::StrAppend(text, "  With int8 ", OneLine(left_out), ".\n");
  }
}

Json ConfigJson(const ModelConfig& config) {
  return {{"name", config.name},         {"fingerprint", config.fingerprint}, {"context_length", config.context_length},
          {"layers", config.layers},     {"hidden", config.hidden},           {"heads", config.heads},
          {"kv_heads", config.kv_heads}, {"head_dim", config.head_dim},       {"ffn", config.ffn},
          {"vocabulary", config.vocab},  {"windows", config.windows}};
}

Json MemoryJson(const Inspection& inspection, int64_t context, int64_t batch) {
  Json needs = Json::array();
  for (const MemoryNeed& need : MemoryNeeds(inspection, context, batch)) {
    needs.push_back({{"dtype", need.dtype},
                     {"device", need.on_gpu ? "cuda" : "cpu"},
                     {"kv_dtype", DTypeName(need.kv_dtype)},
                     {"kv_bytes_per_token", need.kv_per_token},
                     {"prefill_weight_bytes", need.prefill_weights},
                     {"decode_weight_bytes", need.decode_weights},
                     {"both_weight_bytes", need.both_weights},
                     {"prefill_kv_bytes", need.prefill_kv},
                     {"decode_kv_bytes", need.decode_kv}});
  }
  return {{"context", context}, {"batch", batch}, {"needs", std::move(needs)}};
}

}  // namespace

std::string InspectionText(const Inspection& inspection, int64_t context, int64_t batch) {
  std::string text = absl::StrCat(inspection.path, "\n");
  AppendLine(&text, "architecture",
             absl::StrCat(OneLine(inspection.architecture), inspection.is_folder ? ", a Hugging Face folder"
                                                            : inspection.files == 1
                                                                ? ", a GGUF file"
                                                                : absl::StrCat(", ", inspection.files, " GGUF files")));
  AppendLine(&text, "tensors", StoredText(inspection));
  if (inspection.config) AppendConfig(inspection, &text);
  if (inspection.words) AppendWords(inspection, &text);
  AppendLine(&text, "runs", inspection.runs() ? "yes" : "no");
  for (const std::string& remark : inspection.remarks) AppendLine(&text, "but", OneLine(remark));
  if (!inspection.on_cpus.ok()) AppendLine(&text, "on CPUs", OneLine(inspection.on_cpus.message()));
  for (const absl::Status& refusal : inspection.refusals) AppendLine(&text, "", OneLine(refusal.message()));
  if (inspection.plan) {
    AppendMemory(inspection, context > 0 ? context : inspection.config->context_length, batch, &text);
  }
  return text;
}

std::string InspectionJson(const Inspection& inspection, int64_t context, int64_t batch) {
  Json json{{"path", inspection.path},
            {"format", inspection.is_folder ? "folder" : "gguf"},
            {"architecture", inspection.architecture},
            {"runs", inspection.runs()},
            {"runs_on_cpus", inspection.runs() && inspection.on_cpus.ok()},
            {"refusals", Json::array()},
            {"files", inspection.files},
            {"remarks", inspection.remarks},
            {"tensors", Json::array()}};
  for (const absl::Status& refusal : inspection.refusals) json["refusals"].push_back(std::string(refusal.message()));
  for (const Inspection::Stored& stored : inspection.stored) {
    json["tensors"].push_back({{"type", stored.type}, {"count", stored.tensors}, {"bytes", stored.bytes}});
  }
  if (inspection.config) json["config"] = ConfigJson(*inspection.config);
  if (inspection.words) {
    const Inspection::Words& words = *inspection.words;
    json["tokenizer"] = {{"kind", words.kind}, {"tokens", words.tokens},     {"bos", words.bos},
                         {"eos", words.eos},   {"adds_bos", words.adds_bos}, {"chats", inspection.chat_template.ok()}};
    if (!inspection.chat_template.ok()) json["tokenizer"]["no_chats"] = std::string(inspection.chat_template.message());
  }
  if (inspection.plan) {
    json["parameters"] = inspection.plan->elements();
    json["memory"] = MemoryJson(inspection, context > 0 ? context : inspection.config->context_length, batch);
  }
  // Texts of a file may be any bytes.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace runahead
