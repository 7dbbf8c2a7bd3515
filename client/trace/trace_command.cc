#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/base/command.h"
#include "client/base/connection.h"
#include "client/base/output_file.h"
#include "client/trace/chrome_trace.h"
#include "kernels/base/mutex.h"
#include "server/base/clock.h"
#include "server/rpc/channel.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

constexpr char kTrace[] = "trace";
constexpr absl::Duration kTraceTimeout = absl::Seconds(30);
// Workers say some milliseconds after the last token that they are done.
constexpr absl::Duration kPatience = absl::Seconds(5);

struct TraceFlags {
  RouterFlags router;
  std::string request;
  std::string output;
};

void Pause(absl::Duration time) {
  Mutex mu;
  CondVar never;
  MutexLock lock(mu);
  never.WaitFor(mu, time);
}

// Asks again as long as the service says when to, but no longer than kPatience.
absl::StatusOr<v1::Trace> FetchTrace(v1::Inference::StubInterface& stub, const std::string& request_id) {
  const absl::Time give_up = RealClock().Now() + kPatience;
  v1::GetTraceRequest request;
  request.set_request_id(request_id);
  while (true) {
    grpc::ClientContext context;
    SetTimeout(context, kTraceTimeout);
    v1::Trace trace;
    const absl::Status status = FromGrpcStatus(stub.GetTrace(&context, request, &trace));
    if (status.ok()) return trace;
    const std::optional<absl::Duration> again = RetryAfter(status);
    if (!absl::IsNotFound(status) || !again || RealClock().Now() + *again > give_up) return status;
    Pause(*again);
  }
}

int RunTrace(const TraceFlags& flags) {
  const absl::Status writable = CheckOutputFile("--output", flags.output, "");
  if (!writable.ok()) return WrongUsage(kTrace, writable);
  const auto stub = Connect(flags.router);
  if (!stub.ok()) return NotConnected(kTrace, stub.status());
  const auto trace = FetchTrace(**stub, flags.request);
  if (!trace.ok()) return Refused(kTrace, trace.status());
  std::ofstream file(flags.output, std::ios::binary | std::ios::trunc);
  file << ChromeTrace(*trace) << "\n" << std::flush;
  if (!file) return Refused(kTrace, absl::UnknownError(absl::StrCat(flags.output, " could not be written")));
  int spans = 0;
  for (const v1::TraceProcess& process : trace->processes()) spans += process.spans_size();
  std::cerr << flags.output << ": " << spans << " spans of " << trace->processes_size()
            << " processes; open it at https://ui.perfetto.dev or chrome://tracing\n";
  return kDone;
}

}  // namespace

void AddTraceCommand(CLI::App& app, Command* chosen) {
  CLI::App& trace = *app.add_subcommand(
      kTrace,
      "Writes what was recorded of a request, by router and workers, to a file that Perfetto and Chrome show.\n"
      "The router must run with --trace: all, or asked and the request asked for it (generate --trace).");
  const auto flags = std::make_shared<TraceFlags>();
  flags->router.AddTo(trace);
  trace.add_option("--request", flags->request, "The request's id, as its answer and the router's log say it")
      ->required()
      ->type_name("ID");
  trace.add_option("-o,--output", flags->output, "The file; what is there is replaced")->required()->type_name("FILE");
  trace.callback([flags, chosen] { *chosen = [flags] { return RunTrace(*flags); }; });
}

}  // namespace runahead
