#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/base/command.h"
#include "client/base/connection.h"
#include "client/models/model_cache.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

constexpr char kPull[] = "pull";

std::vector<KnownModel> KnownModels() {
  auto models = ParseModelList(kModelList);
  RUNAHEAD_CHECK(models.ok());  // it is built in
  return *std::move(models);
}

std::string Names(const std::vector<KnownModel>& models) {
  return absl::StrJoin(models, ", ", [](std::string* out, const KnownModel& model) { *out += model.name; });
}

int RunPull(const std::string& name) {
  const std::vector<KnownModel> models = KnownModels();
  for (const KnownModel& model : models) {
    if (model.name != name) continue;
    const auto cache = CacheFolder();
    if (!cache.ok()) return Refused(kPull, cache.status());
    const auto path = FetchModel(model, *cache);
    if (!path.ok()) return Refused(kPull, path.status());
    std::cout << *path << "\n";
    return kDone;
  }
  return WrongUsage(kPull,
                    absl::InvalidArgumentError(absl::StrCat("unknown model '", name, "'; there is: ", Names(models))));
}

}  // namespace

void AddPullCommand(CLI::App& app, Command* chosen) {
  CLI::App& pull =
      *app.add_subcommand(kPull,
                          "Fetches a model by name into the cache, unless it is there, and prints its path.\n"
                          "The cache is $XDG_CACHE_HOME/runahead, or ~/.cache/runahead. Nothing else goes to stdout.");
  const auto name = std::make_shared<std::string>();
  pull.add_option("name", *name, absl::StrCat("One of: ", Names(KnownModels())))->required()->type_name("NAME");
  pull.callback([name, chosen] { *chosen = [name] { return RunPull(*name); }; });
}

}  // namespace runahead
