#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <utility>

#include "absl/strings/strip.h"
#include "client/base/command.h"
#include "client/base/connection.h"
#include "client/base/interrupt.h"
#include "client/base/parse.h"
#include "client/generate/generate_call.h"
#include "client/generate/generate_result.h"
#include "client/generate/sampling_flags.h"
#include "client/generate/template_flags.h"

namespace runahead {
namespace {

constexpr char kChat[] = "chat";

struct ChatFlags {
  RouterFlags router;
  std::string model;
  std::string system;
  TemplateFlags template_flags;
  SamplingFlags sampling;
};

void Append(const std::string& role, const std::string& content, v1::ChatMessages& messages) {
  v1::ChatMessage& message = *messages.add_messages();
  message.set_role(role);
  message.set_content(content);
}

// `extra`: what its template reads beside the messages.
v1::GenerateRequest NewConversation(const ChatFlags& flags, const v1::ChatMessages& extra) {
  v1::GenerateRequest request;
  *request.mutable_chat() = extra;
  request.set_model(flags.model);
  flags.sampling.FillIn(request);
  if (!flags.system.empty()) Append("system", flags.system, *request.mutable_chat());
  return request;
}

// One question and its answer, which stays in the conversation as far as it was seen. A question that got none leaves
// no trace, so that it can be asked again.
void Ask(v1::Inference::StubInterface& stub, const std::string& question, Interrupt& interrupt,
         v1::GenerateRequest& request) {
  v1::ChatMessages& messages = *request.mutable_chat();
  Append("user", question, messages);
  GenerateResult answer;
  int signal = 0;
  const auto print = [&answer](v1::GenerateResponse response) {
    std::cout << Add(std::move(response), answer) << std::flush;
  };
  const absl::Status status = GenerateCall(stub, request, {}, interrupt, print, &signal);
  const std::string& text = answer.text;
  if (text.empty()) {
    messages.mutable_messages()->RemoveLast();
  } else {
    std::cout << "\n" << std::flush;
    Append("assistant", text, messages);
  }
  if (signal != 0) {
    std::cerr << "(cancelled)\n";
  } else if (!status.ok()) {
    std::cerr << "runahead chat: " << ErrorText(status) << "\n";
  } else {
    std::cerr << SummaryLine(answer) << "\n";
  }
}

int RunChat(const ChatFlags& flags) {
  Interrupt interrupt;
  const auto stub = Connect(flags.router);
  if (!stub.ok()) return NotConnected(kChat, stub.status());
  for (const auto& [flag, text] : {std::pair("--model", flags.model), std::pair("--system", flags.system)}) {
    if (const absl::Status utf8 = CheckUtf8(text); !utf8.ok()) return WrongUsage(kChat, InFlag(flag, utf8));
  }
  v1::ChatMessages extra;
  if (const absl::Status filled = flags.template_flags.FillIn(extra); !filled.ok()) return WrongUsage(kChat, filled);
  const bool terminal = isatty(STDIN_FILENO);
  if (terminal) std::cerr << "/reset forgets the conversation, Ctrl-C stops an answer, /exit or Ctrl-D ends.\n";
  v1::GenerateRequest request = NewConversation(flags, extra);
  std::string line;
  while (true) {
    if (terminal) std::cerr << "\n> " << std::flush;
    if (!std::getline(std::cin, line)) break;
    const std::string question(absl::StripAsciiWhitespace(line));
    if (question.empty()) continue;
    if (question == "/exit") return kDone;
    if (question == "/reset") {
      request = NewConversation(flags, extra);
    } else if (question[0] == '/' && question.find(' ') == std::string::npos) {
      std::cerr << "no such command; there are /reset and /exit\n";
    } else if (const absl::Status utf8 = CheckUtf8(question); !utf8.ok()) {
      std::cerr << "your text " << utf8.message() << "\n";
    } else {
      Ask(**stub, question, interrupt, request);
    }
  }
  if (terminal) std::cerr << "\n";
  return kDone;
}

}  // namespace

void AddChatCommand(CLI::App& app, Command* chosen) {
  CLI::App& chat =
      *app.add_subcommand(kChat,
                          "Talks with the model: each line of stdin is a question, and the conversation is kept.\n"
                          "/reset forgets it, /exit or the end of stdin ends, Ctrl-C stops an answer.");
  const auto flags = std::make_shared<ChatFlags>();
  flags->router.AddTo(chat);
  chat.add_option("--model", flags->model,
                  "The model's name, or its file's without .gguf (default: the one that is served)")
      ->type_name("NAME");
  chat.add_option("--system", flags->system, "The system message (default: the model's own, if it has one)")
      ->type_name("TEXT");
  flags->template_flags.AddTo(chat);
  flags->sampling.AddTo(chat);
  chat.callback([flags, chosen] { *chosen = [flags] { return RunChat(*flags); }; });
}

}  // namespace runahead
