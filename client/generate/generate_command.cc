#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/base/command.h"
#include "client/base/connection.h"
#include "client/base/interrupt.h"
#include "client/generate/answers_printer.h"
#include "client/generate/generate_call.h"
#include "client/generate/generate_flags.h"
#include "client/generate/generate_result.h"
#include "server/base/clock.h"

namespace runahead {
namespace {

constexpr char kGenerate[] = "generate";

// Of one whose text was shown as it came, unless as JSON.
void ShowEnd(const GenerateResult& answer, bool json) {
  if (json) {
    std::cout << ResultJson(answer) << "\n" << std::flush;
    return;
  }
  std::cout << LogprobsText(answer) << std::flush;
  std::cerr << SummaryLine(answer) << "\n";
}

int RunGenerate(const GenerateFlags& flags) {
  Interrupt interrupt;
  const auto request = flags.Request();
  if (!request.ok()) return WrongUsage(kGenerate, request.status());
  const auto timeout = flags.Timeout();
  if (!timeout.ok()) return WrongUsage(kGenerate, timeout.status());
  const absl::Time began = RealClock().Now();
  const auto stub = Connect(flags.router(), *timeout);
  if (!stub.ok()) return NotConnected(kGenerate, stub.status());

  std::optional<TraceContext> span;
  if (flags.trace()) span = NewSpan(std::nullopt, /*sampled=*/true);
  const std::string trace_id = span ? span->trace_id : "";
  const bool several = request->n() > 1;
  GenerateResult answer;
  answer.trace_id = trace_id;
  AnswersPrinter answers(flags.json(), trace_id, std::cout, std::cerr);
  const auto take = [&](v1::GenerateResponse response) {
    if (several) return answers.Take(std::move(response));
    const std::string text = Add(std::move(response), answer);
    if (!flags.json()) std::cout << text << std::flush;
  };
  int signal = 0;
  const absl::Duration left = std::max(*timeout - (RealClock().Now() - began), absl::ZeroDuration());
  const CallOptions options = {.timeout = left, .tenant = flags.tenant(), .span = span};
  const absl::Status status = GenerateCall(**stub, *request, options, interrupt, take, &signal);
  answers.End();
  if (!flags.json() && !answer.text.empty()) std::cout << "\n" << std::flush;
  if (signal != 0) return kSignalled + signal;
  if (absl::IsDeadlineExceeded(status)) {
    return Refused(kGenerate, absl::DeadlineExceededError(absl::StrCat(
                                  "not done within the ", absl::FormatDuration(*timeout), " of --timeout")));
  }
  if (!status.ok()) return Refused(kGenerate, status);
  if (!several) ShowEnd(answer, flags.json());
  if (span && !flags.json()) {
    std::cerr << "trace " << trace_id << ", if the router records it: runahead trace --router "
              << flags.router().address << " --request "
              << (several ? answers.request_id() : answer.started.request_id()) << " -o trace.json\n";
  }
  return kDone;
}

}  // namespace

void AddGenerateCommand(CLI::App& app, Command* chosen) {
  CLI::App& generate =
      *app.add_subcommand(kGenerate,
                          "Continues a prompt or answers a chat, streaming the text to stdout as it comes.\n"
                          "Exit codes: 0 done, 1 the service refused or failed, 2 wrong usage.");
  const auto flags = std::make_shared<GenerateFlags>();
  flags->AddTo(generate);
  generate.callback([flags, chosen] { *chosen = [flags] { return RunGenerate(*flags); }; });
}

}  // namespace runahead
