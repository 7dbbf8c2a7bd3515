#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/base/command.h"
#include "client/base/connection.h"
#include "server/rpc/channel.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

constexpr char kModels[] = "models";
constexpr absl::Duration kModelsTimeout = absl::Seconds(30);

struct ModelsFlags {
  std::string router;
  bool json = false;
};

std::string ModelsJson(const v1::ListModelsResponse& response) {
  nlohmann::ordered_json models = nlohmann::ordered_json::array();
  for (const v1::Model& model : response.models()) {
    models.push_back({{"name", model.name()},
                      {"context_length", model.context_length()},
                      {"vocabulary_size", model.vocabulary_size()},
                      {"dtype", model.dtype()},
                      {"fingerprint", model.fingerprint()},
                      {"prefill_workers", model.prefill_workers()},
                      {"decode_workers", model.decode_workers()},
                      {"layers", model.layers()},
                      {"kv_bytes_per_token", model.kv_bytes_per_token()},
                      {"window_layers", model.window_layers()},
                      {"window", model.window()},
                      {"builds", std::vector<std::string>(model.builds().begin(), model.builds().end())}});
  }
  return nlohmann::ordered_json{{"models", std::move(models)}}.dump();
}

std::string ModelsText(const v1::ListModelsResponse& response) {
  std::string text;
  for (const v1::Model& model : response.models()) {
    absl::StrAppendFormat(&text, "%s: context %d tokens, vocabulary %d, %s, %d prefill and %d decode workers, %s\n",
                          model.name(), model.context_length(), model.vocabulary_size(), model.dtype(),
                          model.prefill_workers(), model.decode_workers(), model.fingerprint());
    if (model.builds_size() > 1) {
      absl::StrAppend(&text, "  its workers are of different builds: ", absl::StrJoin(model.builds(), ", "), "\n");
    }
  }
  return text;
}

int RunModels(const ModelsFlags& flags) {
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
  CLI::App& models = *app.add_subcommand(kModels, "Says which model a router serves, and with how many workers.");
  const auto flags = std::make_shared<ModelsFlags>();
  models.add_option("--router", flags->router, "Where the router listens (host:port)")->required()->type_name("ADDR");
  models.add_flag("--json", flags->json, "One JSON object: {\"models\":[..]}");
  models.callback([flags, chosen] { *chosen = [flags] { return RunModels(*flags); }; });
}

}  // namespace runahead
