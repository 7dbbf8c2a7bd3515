#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "client/base/command.h"
#include "client/base/connection.h"
#include "client/base/parse.h"
#include "client/generate/vocabulary_source.h"
#include "kernels/base/status_macros.h"
#include "server/rpc/channel.h"
#include "server/rpc/status.h"
#include "server/tokenizer/tokenizer.h"
#include "worker/format/open_model.h"

namespace runahead {
namespace {

constexpr char kDetokenize[] = "detokenize";

struct DetokenizeFlags {
  VocabularySource source;
  std::string ids;
  bool special = false;
  bool json = false;
};

absl::StatusOr<std::string> TextByModel(const DetokenizeFlags& flags, const std::vector<int32_t>& ids) {
  RUNAHEAD_ASSIGN_OR_RETURN(const auto file, OpenModelFile(flags.source.model));
  RUNAHEAD_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::FromModel(*file));
  // What the model draws, and what the tokenizer gives; a file of a vocabulary alone has no table.
  const int64_t size = std::max(tokenizer->vocab_size(), VocabularySize(*file).value_or(0));
  for (const int32_t id : ids) {
    if (id >= 0 && id < size) continue;
    return absl::OutOfRangeError(absl::StrCat("IDS: ", id, " is not in [0, ", size, ")"));
  }
  return tokenizer->Decode(ids, /*skip_special=*/!flags.special);
}

absl::StatusOr<std::string> TextByRouter(const DetokenizeFlags& flags, const std::vector<int32_t>& ids) {
  RUNAHEAD_ASSIGN_OR_RETURN(const auto stub, Connect(flags.source.router));
  grpc::ClientContext context;
  SetTimeout(context, kVocabularyTimeout);
  v1::DetokenizeRequest request;
  request.mutable_ids()->Assign(ids.begin(), ids.end());
  request.set_special(flags.special);
  v1::DetokenizeResponse response;
  RUNAHEAD_RETURN_IF_ERROR(FromGrpcStatus(stub->Detokenize(&context, request, &response)));
  return std::move(*response.mutable_text());
}

int RunDetokenize(const DetokenizeFlags& flags) {
  if (const absl::Status source = flags.source.Check(); !source.ok()) return WrongUsage(kDetokenize, source);
  const auto ids = ParseIds(flags.ids);
  if (!ids.ok()) return WrongUsage(kDetokenize, InFlag("IDS", ids.status()));
  const auto text = flags.source.by_model() ? TextByModel(flags, *ids) : TextByRouter(flags, *ids);
  if (!text.ok()) return Refused(kDetokenize, text.status());
  std::cout << (flags.json ? nlohmann::json{{"text", *text}}.dump() : *text) << "\n";
  return kDone;
}

}  // namespace

void AddDetokenizeCommand(CLI::App& app, Command* chosen) {
  CLI::App& detokenize = *app.add_subcommand(
      kDetokenize, "Turns token ids into text, by a model's file or by the model that a router serves.");
  const auto flags = std::make_shared<DetokenizeFlags>();
  flags->source.AddTo(detokenize);
  detokenize.add_flag("--special", flags->special, "Special tokens are written by their names (default: left out)");
  detokenize.add_flag("--json", flags->json, "One JSON object: {\"text\":\"..\"}");
  detokenize.add_option("ids", flags->ids, "Token ids, as in 1,2,3")->required()->type_name("IDS");
  detokenize.callback([flags, chosen] { *chosen = [flags] { return RunDetokenize(*flags); }; });
}

}  // namespace runahead
