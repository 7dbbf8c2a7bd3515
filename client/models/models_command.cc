#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/base/command.h"
#include "client/base/connection.h"
#include "client/base/parse.h"
#include "client/base/typed_flags.h"
#include "client/models/inspection_output.h"
#include "kernels/base/status_macros.h"
#include "server/rpc/channel.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

constexpr char kModels[] = "models";
constexpr absl::Duration kModelsTimeout = absl::Seconds(30);

// Above any context and batch; sizes in bytes do not overflow.
constexpr uint64_t kMostContext = uint64_t{1} << 30;
constexpr uint64_t kMostBatch = 65536;

struct ModelsFlags {
  RouterFlags router;
  std::string inspect;
  std::optional<uint64_t> context, batch;
  bool json = false;
};

std::string ModelsJson(const v1::ListModelsResponse& response) {
  nlohmann::ordered_json models = nlohmann::ordered_json::array();
  for (const v1::Model& model : response.models()) {
    models.push_back({{"name", model.name()},
                      {"context_length", model.context_length()},
                      {"vocabulary_size", model.vocabulary_size()},
                      {"dtype", model.dtype()},
                      {"kv_dtype", model.kv_dtype()},
                      {"fingerprint", model.fingerprint()},
                      {"weights_fingerprint", model.weights_fingerprint()},
                      {"prefill_workers", model.prefill_workers()},
                      {"decode_workers", model.decode_workers()},
                      {"layers", model.layers()},
                      {"kv_bytes_per_token", model.kv_bytes_per_token()},
                      {"window_layers", model.window_layers()},
                      {"window", model.window()},
                      {"builds", std::vector<std::string>(model.builds().begin(), model.builds().end())},
                      {"refused_workers",
                       std::vector<std::string>(model.refused_workers().begin(), model.refused_workers().end())}});
  }
  return nlohmann::ordered_json{{"models", std::move(models)}}.dump();
}

std::string ModelsText(const v1::ListModelsResponse& response) {
  std::string text;
  for (const v1::Model& model : response.models()) {
    const std::string kv = model.kv_dtype().empty() ? "" : absl::StrCat(" with KV in ", model.kv_dtype());
    absl::StrAppendFormat(&text, "%s: context %d tokens, vocabulary %d, %s%s, %d prefill and %d decode workers, %s\n",
                          model.name(), model.context_length(), model.vocabulary_size(), model.dtype(), kv,
                          model.prefill_workers(), model.decode_workers(), model.fingerprint());
    for (const std::string& refused : model.refused_workers()) absl::StrAppend(&text, "  refused: ", refused, "\n");
    if (model.builds_size() > 1) {
      absl::StrAppend(&text, "  its workers are of different builds: ", absl::StrJoin(model.builds(), ", "), "\n");
    }
  }
  return text;
}

absl::Status CheckFlags(const ModelsFlags& flags) {
  if (flags.router.address.empty() == flags.inspect.empty()) return WrongFlag("give one of --router and --inspect");
  if (flags.inspect.empty() && (flags.context || flags.batch))
    return WrongFlag("--context and --batch go with --inspect");
  const auto check = [](const char* flag, std::optional<uint64_t> value, uint64_t most) {
    if (value.value_or(1) >= 1 && value.value_or(1) <= most) return absl::OkStatus();
    return WrongFlag(flag, ": ", *value, " is out of range; allowed: a whole number from 1 to ", most);
  };
  RUNAHEAD_RETURN_IF_ERROR(check("--context", flags.context, kMostContext));
  return check("--batch", flags.batch, kMostBatch);
}

int RunInspect(const ModelsFlags& flags) {
  const absl::StatusOr<Inspection> inspection = InspectModel(flags.inspect);
  if (!inspection.ok()) return NotRead(kModels, inspection.status());
  const auto context = static_cast<int64_t>(flags.context.value_or(0));
  const auto batch = static_cast<int64_t>(flags.batch.value_or(1));
  if (inspection->config && context > inspection->config->context_length) {
    return WrongUsage(kModels, WrongFlag("--context: ", context, " is more than the model's context, ",
                                         inspection->config->context_length));
  }
  std::cout << (flags.json ? InspectionJson(*inspection, context, batch) + "\n"
                           : InspectionText(*inspection, context, batch))
            << std::flush;
  return inspection->runs() ? kDone : kFailed;
}

int RunModels(const ModelsFlags& flags) {
  if (const absl::Status status = CheckFlags(flags); !status.ok()) return WrongUsage(kModels, status);
  if (!flags.inspect.empty()) return RunInspect(flags);
  const auto stub = Connect(flags.router);
  if (!stub.ok()) return NotConnected(kModels, stub.status());
  grpc::ClientContext context;
  SetTimeout(context, kModelsTimeout);
  v1::ListModelsResponse response;
  const absl::Status status = FromGrpcStatus((*stub)->ListModels(&context, {}, &response));
  if (!status.ok()) return Refused(kModels, status);
  std::cout << (flags.json ? ModelsJson(response) + "\n" : ModelsText(response)) << std::flush;
  return kDone;
}

}  // namespace

void AddModelsCommand(CLI::App& app, Command* chosen) {
  CLI::App& models = *app.add_subcommand(
      kModels,
      "Says which model a router serves, and with how many workers; or what a file or folder is, whether it runs, and\n"
      "the memory that it takes, before anything is loaded. Exit code 1: it does not run.");
  const auto flags = std::make_shared<ModelsFlags>();
  flags->router.AddTo(models, /*required=*/false);
  models
      .add_option("--inspect", flags->inspect,
                  "A GGUF file (the first, where a model is in several), or a Hugging Face folder")
      ->type_name("PATH");
  AddNumber(models, "--context", &flags->context,
            "With --inspect: tokens of a prompt and its answer (default: the model's context)", "N");
  AddNumber(models, "--batch", &flags->batch, "With --inspect: sequences that are decoded at once (default 1)", "N");
  models.add_flag("--json", flags->json, "One JSON object: {\"models\":[..]}, or what --inspect says");
  models.callback([flags, chosen] { *chosen = [flags] { return RunModels(*flags); }; });
}

}  // namespace runahead
