#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_join.h"
#include "client/base/command.h"
#include "client/base/connection.h"
#include "client/base/parse.h"
#include "client/base/typed_flags.h"
#include "client/generate/template_flags.h"
#include "client/generate/vocabulary_source.h"
#include "kernels/base/status_macros.h"
#include "server/base/clock.h"
#include "server/rpc/channel.h"
#include "server/rpc/status.h"
#include "server/tokenizer/chat_template.h"
#include "server/tokenizer/tokenizer.h"
#include "worker/format/open_model.h"

namespace runahead {
namespace {

constexpr char kTokenize[] = "tokenize";

struct TokenizeFlags {
  VocabularySource source;
  std::optional<std::string> text;
  std::vector<std::string> messages;
  TemplateFlags template_flags;
  bool special = false;
  bool without_begin = false;
  bool json = false;
};

absl::StatusOr<v1::TokenizeRequest> RequestOf(const TokenizeFlags& flags) {
  v1::TokenizeRequest request;
  request.set_special(flags.special);
  request.set_without_begin(flags.without_begin);
  if (flags.messages.empty()) {
    if (!flags.text) return absl::InvalidArgumentError("missing: TEXT: The text; or --message ROLE:TEXT for a chat");
    if (flags.template_flags.given()) {
      return absl::InvalidArgumentError("--tools and --template-variable go with --message");
    }
    RUNAHEAD_RETURN_IF_ERROR(InFlag("TEXT", CheckUtf8(*flags.text)));
    request.set_text(*flags.text);
    return request;
  }
  if (flags.text || flags.special || flags.without_begin) {
    return absl::InvalidArgumentError("TEXT, --special and --without-begin do not go with --message");
  }
  for (const std::string& text : flags.messages) {
    const auto message = ParseMessage(text);
    RUNAHEAD_RETURN_IF_ERROR(InFlag("--message", message.status()));
    *request.mutable_chat()->add_messages() = *message;
  }
  RUNAHEAD_RETURN_IF_ERROR(flags.template_flags.FillIn(*request.mutable_chat()));
  return request;
}

// Of what can be typed.
Chat ChatOf(const v1::ChatMessages& given) {
  Chat chat;
  for (const v1::ChatMessage& message : given.messages()) chat.messages.push_back({message.role(), message.content()});
  chat.tools = given.tools();
  chat.variables = given.template_variables();
  chat.now = RealClock().Now();
  return chat;
}

absl::StatusOr<std::vector<int32_t>> TokenizeByModel(const std::string& path, const v1::TokenizeRequest& request) {
  RUNAHEAD_ASSIGN_OR_RETURN(const auto file, OpenModelFile(path));
  RUNAHEAD_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::FromModel(*file));
  if (request.has_chat()) {
    RUNAHEAD_ASSIGN_OR_RETURN(const ChatTemplate chat_template, ChatTemplate::FromModel(*file, *tokenizer));
    return chat_template.Encode(*tokenizer, ChatOf(request.chat()));
  }
  return tokenizer->Encode(request.text(), {.parse_special = request.special(), .add_bos = !request.without_begin()});
}

absl::StatusOr<std::vector<int32_t>> TokenizeByRouter(const RouterFlags& router, const v1::TokenizeRequest& request) {
  RUNAHEAD_ASSIGN_OR_RETURN(const auto stub, Connect(router));
  grpc::ClientContext context;
  SetTimeout(context, kVocabularyTimeout);
  v1::TokenizeResponse response;
  RUNAHEAD_RETURN_IF_ERROR(FromGrpcStatus(stub->Tokenize(&context, request, &response)));
  return std::vector<int32_t>(response.ids().begin(), response.ids().end());
}

int RunTokenize(const TokenizeFlags& flags) {
  if (const absl::Status source = flags.source.Check(); !source.ok()) return WrongUsage(kTokenize, source);
  const auto request = RequestOf(flags);
  if (!request.ok()) return WrongUsage(kTokenize, request.status());
  const auto ids = flags.source.by_model() ? TokenizeByModel(flags.source.model, *request)
                                           : TokenizeByRouter(flags.source.router, *request);
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
                          "Turns a prompt or a chat into token ids, by a model's file or by the model that a router\n"
                          "serves. Prints them as generate --token-ids takes them, which then answers as it answers\n"
                          "the text or the chat.");
  const auto flags = std::make_shared<TokenizeFlags>();
  flags->source.AddTo(tokenize);
  tokenize.add_flag("--special", flags->special,
                    "Names of special tokens in the text, as <|im_end|>, become their ids");
  tokenize.add_flag("--without-begin", flags->without_begin,
                    "Without the token that a prompt begins with where the model wants one");
  tokenize.add_flag("--json", flags->json, "One JSON object: {\"ids\":[..]}");
  tokenize.add_option("text", flags->text, "The text; after -- where it begins with a dash")->type_name("TEXT");
  tokenize.option_defaults()->group("Chats (in place of TEXT)");
  AddRepeated(tokenize, "--message", &flags->messages,
              "A message of a chat, as in 'user:Hello'; repeated for more, the oldest first", "ROLE:TEXT");
  flags->template_flags.AddTo(tokenize);
  tokenize.callback([flags, chosen] { *chosen = [flags] { return RunTokenize(*flags); }; });
}

}  // namespace runahead
