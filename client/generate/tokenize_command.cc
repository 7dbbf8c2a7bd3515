#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_join.h"
#include "client/base/command.h"
#include "client/base/connection.h"
#include "client/base/parse.h"
#include "kernels/base/status_macros.h"
#include "server/base/address.h"
#include "server/rpc/channel.h"
#include "server/rpc/status.h"
#include "server/tokenizer/tokenizer.h"
#include "worker/format/open_model.h"

namespace runahead {
namespace {

constexpr char kTokenize[] = "tokenize";
constexpr absl::Duration kTokenizeTimeout = absl::Seconds(60);

struct TokenizeFlags {
  std::string model;
  std::string router;
  std::string text;
  bool special = false;
  bool json = false;
};

absl::StatusOr<std::vector<int32_t>> TokenizeByModel(const TokenizeFlags& flags) {
  RUNAHEAD_ASSIGN_OR_RETURN(const auto file, OpenModelFile(flags.model));
  RUNAHEAD_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::FromModel(*file));
  return tokenizer->Encode(flags.text, {.parse_special = flags.special, .add_bos = false});
}

absl::StatusOr<std::vector<int32_t>> TokenizeByRouter(const TokenizeFlags& flags) {
  RUNAHEAD_ASSIGN_OR_RETURN(const auto stub, Connect(flags.router));
  grpc::ClientContext context;
  SetTimeout(context, kTokenizeTimeout);
  v1::TokenizeRequest request;
  request.set_text(flags.text);
  request.set_special(flags.special);
  v1::TokenizeResponse response;
  RUNAHEAD_RETURN_IF_ERROR(FromGrpcStatus(stub->Tokenize(&context, request, &response)));
  return std::vector<int32_t>(response.ids().begin(), response.ids().end());
}

int RunTokenize(const TokenizeFlags& flags) {
  if (flags.model.empty() == flags.router.empty()) {
    return WrongUsage(kTokenize, absl::InvalidArgumentError("give exactly one of --model PATH and --router ADDR"));
  }
  if (!flags.router.empty()) {
    const absl::Status address = ParseHostPort(flags.router).status();
    if (!address.ok()) return WrongUsage(kTokenize, InFlag("--router", address));
  }
  if (const absl::Status utf8 = CheckUtf8(flags.text); !utf8.ok()) return WrongUsage(kTokenize, InFlag("TEXT", utf8));
  const auto ids = flags.router.empty() ? TokenizeByModel(flags) : TokenizeByRouter(flags);
  if (!ids.ok()) return Refused(kTokenize, ids.status());
  if (flags.json) {
    std::cout << nlohmann::json{{"ids", *ids}}.dump() << "\n";
  } else {
    std::cout << absl::StrJoin(*ids, ",") << "\n";
  }
  return kDone;
}

}  // namespace

void AddTokenizeCommand(CLI::App& app, Command* chosen) {
  CLI::App& tokenize =
      *app.add_subcommand(kTokenize,
                          "Turns text into token ids, by a model's file or by the model that a router serves.\n"
                          "Prints them as generate --token-ids takes them.");
  const auto flags = std::make_shared<TokenizeFlags>();
  tokenize.add_option("--model", flags->model, "GGUF file, or Hugging Face folder, of the model")->type_name("PATH");
  tokenize.add_option("--router", flags->router, "Where the router listens (host:port)")->type_name("ADDR");
  tokenize.add_flag("--special", flags->special,
                    "Names of special tokens in the text, as <|im_end|>, become their ids");
  tokenize.add_flag("--json", flags->json, "One JSON object: {\"ids\":[..]}");
  tokenize.add_option("text", flags->text, "The text; after -- where it begins with a dash")
      ->required()
      ->type_name("TEXT");
  tokenize.callback([flags, chosen] { *chosen = [flags] { return RunTokenize(*flags); }; });
}

}  // namespace runahead
