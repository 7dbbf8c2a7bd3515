#include "server/base/config_flags.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "server/base/command_line.h"
#include "server/base/version.h"

namespace runahead {
namespace {

ConfigValue Scalar(const std::string& where, std::string text) {
  ConfigValue value;
  value.kind = ConfigValue::Kind::kScalar;
  value.where = where;
  value.scalar = std::move(text);
  return value;
}

// "role=prefill,address=127.0.0.1:9001"
absl::StatusOr<ConfigValue> ParseMap(const std::string& where, const std::string& text) {
  ConfigValue value;
  value.kind = ConfigValue::Kind::kMap;
  value.where = where;
  for (const absl::string_view pair : absl::StrSplit(text, ',')) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(pair, absl::MaxSplits('=', 1));
    if (pair.find('=') == absl::string_view::npos || parts.first.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": '", pair, "' is not key=value; allowed: key=value,key=value"));
    }
    value.items.push_back(Scalar(where, parts.second));
    value.items.back().key = parts.first;
  }
  return value;
}

absl::StatusOr<ConfigValue> FlagValue(const ConfigKey& key, const std::vector<std::string>& texts) {
  const std::string where = FlagOfKey(key.name);
  if (!key.is_list) {
    if (texts.size() > 1)
      return absl::InvalidArgumentError(absl::StrCat(where, ": given ", texts.size(), " times; allowed: once"));
    return Scalar(where, texts.front());
  }
  ConfigValue value;
  value.kind = ConfigValue::Kind::kList;
  value.where = where;
  for (const std::string& text : texts) {
    if (key.is_maps) {
      RUNAHEAD_ASSIGN_OR_RETURN(value.items.emplace_back(), ParseMap(where, text));
    } else {
      value.items.push_back(Scalar(where, text));
    }
  }
  return value;
}

std::string HelpText(const ConfigKey& key) {
  std::string text = key.doc;
  if (!key.obvious) absl::StrAppend(&text, " [", key.allowed, "]");
  if (key.required) {
    absl::StrAppend(&text, " (required)");
  } else if (!key.default_text.empty()) {
    absl::StrAppend(&text, " (default ", key.default_text, ")");
  }
  return text;
}

}  // namespace

struct ConfigFlags::State {
  explicit State(ConfigSchema& s) : schema(s) {}

  ConfigSchema& schema;
  std::string file;
  std::map<std::string, std::vector<std::string>> given;  // by key; node-based: CLI11 keeps references
};

ConfigFlags::ConfigFlags(CLI::App& app, ConfigSchema& schema) : state_(std::make_unique<State>(schema)) {
  app.add_option("--config", state_->file, "YAML file with the options below, in snake_case; flags win over it")
      ->type_name("FILE");
  const auto add = [&](const ConfigKey& key) -> CLI::Option* {
    std::vector<std::string>& texts = state_->given[key.name];
    if (key.is_bool) {
      return app.add_flag(FlagOfKey(key.name), texts, HelpText(key))
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    }
    const auto collect = [&texts](const CLI::results_t& results) {
      texts = results;
      return true;
    };
    return app.add_option(FlagOfKey(key.name), collect, HelpText(key))
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->type_name(key.value_name);
  };
  for (const ConfigKey& key : schema.keys()) add(key);
  for (const ConfigKey& key : schema.gone()) add(key)->group("");  // --help does not show it
}

ConfigFlags::~ConfigFlags() = default;

absl::Status ConfigFlags::Apply() {
  if (!state_->file.empty()) RUNAHEAD_RETURN_IF_ERROR(ReadConfigFile(state_->file, state_->schema));
  for (const std::vector<ConfigKey>* keys : {&state_->schema.keys(), &state_->schema.gone()}) {
    for (const ConfigKey& key : *keys) {
      const std::vector<std::string>& texts = state_->given[key.name];
      if (texts.empty()) continue;
      RUNAHEAD_ASSIGN_OR_RETURN(const ConfigValue value, FlagValue(key, texts));
      RUNAHEAD_RETURN_IF_ERROR(state_->schema.ApplyFlag(key.name, value));
    }
  }
  const ConfigKey* const missing = state_->schema.FirstMissing();
  if (missing != nullptr && state_->file.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("missing: ", FlagOfKey(missing->name), " ", missing->value_name, ": ", missing->doc));
  }
  return state_->schema.Finish(state_->file);
}

std::optional<int> ParseCommandLine(int argc, const char* const* argv, const std::string& about, ConfigSchema& schema) {
  CLI::App app(about);
  SetUpCommandLine(app, argv[0]);
  app.set_version_flag("--version", absl::StrCat(app.get_name(), " ", Version()));
  ConfigFlags flags(app, schema);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return ExitCodeOf(app, error);
  }
  if (const absl::Status status = flags.Apply(); !status.ok()) {
    std::cerr << app.get_name() << ": " << status.message() << "\nRun with --help for all options.\n";
    return 2;
  }
  return std::nullopt;
}

}  // namespace runahead
