#include <CLI/CLI.hpp>
#include <iostream>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/base/command.h"
#include "client/base/connection.h"
#include "client/base/interrupt.h"
#include "client/base/output_file.h"
#include "client/bench/bench_flags.h"
#include "client/bench/bench_progress.h"
#include "client/bench/bench_report.h"
#include "client/bench/router_door.h"
#include "client/measure/service_timer.h"
#include "kernels/base/status_macros.h"
#include "server/base/clock.h"
#include "server/base/descriptor_limit.h"
#include "server/base/printable.h"
#include "server/base/text_file.h"

namespace runahead {
namespace {

constexpr char kBench[] = "bench";
// A router lets a connection have so many calls and more; beyond, they would wait in the channel.
constexpr int64_t kCallsAConnection = 256;
// Of requests of the warm-up, so that their prompts are none of the load's.
constexpr int64_t kWarmupNumbers = int64_t{1} << 40;

// Where requests go, and what made prompts are made of.
struct OpenedDoor {
  std::unique_ptr<BenchDoor> door;
  std::string model;
  std::vector<int32_t> ids;  // empty: of words
};

absl::StatusOr<OpenedDoor> OpenRouter(const BenchFlags& flags, const BenchPlan& plan) {
  OpenedDoor opened;
  std::vector<std::unique_ptr<v1::Inference::StubInterface>> stubs;
  do {
    RUNAHEAD_ASSIGN_OR_RETURN(stubs.emplace_back(), Connect(flags.router()));
  } while (static_cast<int64_t>(stubs.size()) * kCallsAConnection < plan.load.concurrency);
  RUNAHEAD_ASSIGN_OR_RETURN(const v1::Model served, ServedModel(*stubs[0]));
  opened.model = flags.model().empty() ? served.name() : flags.model();
  if (!plan.chat) {
    RUNAHEAD_ASSIGN_OR_RETURN(opened.ids, ServiceTimer::OrdinaryIds(*stubs[0]));
  }
  opened.door = std::make_unique<RouterDoor>(std::move(stubs), flags.model(), plan.timeout);
  return opened;
}

absl::StatusOr<OpenedDoor> OpenUrl(const BenchFlags& flags, const BenchPlan& plan) {
  OpenedDoor opened;
  RUNAHEAD_ASSIGN_OR_RETURN(auto door, OpenAiDoor::Open(*plan.url, flags.router().api_key, plan.timeout));
  opened.model = flags.model();
  if (opened.model.empty()) {
    RUNAHEAD_ASSIGN_OR_RETURN(opened.model, door->FirstModel());
  }
  door->SetModel(opened.model);
  if (plan.ids) {
    opened.ids.resize(19'000);
    std::iota(opened.ids.begin(), opened.ids.end(), 1'000);  // beyond control tokens and bytes of usual vocabularies
  }
  opened.door = std::move(door);
  return opened;
}

BenchSettings SettingsOf(const BenchFlags& flags, const BenchPlan& plan, const std::string& model) {
  return {.door = plan.url ? flags.url() : flags.router().address,
          .model = model,
          .date = absl::FormatTime("%Y-%m-%d %H:%M:%S", RealClock().Now(), absl::UTCTimeZone()),
          .prompts = flags.PromptsText(plan),
          .seed = plan.workload.seed,
          .rate = plan.rate,
          .concurrency = plan.load.concurrency,
          .warmup = plan.warmup,
          .requests = plan.load.requests,
          .objectives = plan.objectives};
}

// OK unless each of its requests failed: then there is nothing to measure, and the first says why.
absl::Status WarmUp(LoadRun& run, const BenchPlan& plan, const LoadRun::Source& made) {
  const LoadOptions options = {.requests = plan.warmup, .concurrency = plan.load.concurrency};
  const LoadOutcome outcome = run.Run(
      options, [&made](int64_t number) { return made(kWarmupNumbers + number); },
      PoissonArrivals(std::numeric_limits<double>::infinity(), plan.workload.seed));
  const BenchSummary summary = SummaryOf(outcome.records, {});
  if (summary.failed == 0 || summary.completed > 0) return absl::OkStatus();
  for (const BenchRecord& record : outcome.records) {
    if (!record.status.ok() && !record.interrupted) return record.status;
  }
  return absl::OkStatus();
}

std::string ProgressText(const LoadRun& run, int64_t requests) {
  const LoadCounts counts = run.counts();
  return absl::StrCat("[", counts.ended, "/", requests, "] ", counts.under_way, " under way",
                      counts.failed > 0 ? absl::StrCat(", ", counts.failed, " failed") : "");
}

int Report(const BenchFlags& flags, const BenchSettings& settings, const LoadOutcome& outcome) {
  const BenchSummary summary = SummaryOf(outcome.records, settings.objectives);
  if (!flags.json() || !flags.json_file().empty()) std::cout << BenchText(settings, outcome, summary) << std::flush;
  if (flags.json()) {
    const std::string json = BenchJson(settings, outcome, summary) + "\n";
    if (flags.json_file().empty()) {
      std::cout << json << std::flush;
    } else if (const absl::Status written = WriteTextFile(flags.json_file(), json); !written.ok()) {
      return Refused(kBench, written);
    }
  }
  return summary.completed == 0 || (flags.fail_on_error() && summary.failed > 0) ? kFailed : kDone;
}

int RunLoad(const BenchFlags& flags, const BenchPlan& plan, OpenedDoor& opened, Interrupt& interrupt) {
  const BenchSettings settings = SettingsOf(flags, plan, opened.model);
  std::cerr << settings.requests << " prompts " << settings.prompts << "; " << OneLine(settings.model) << " at "
            << settings.door << "; seed " << settings.seed << "\n";
  const Workload workload(plan.workload, std::move(opened.ids));
  const LoadRun::Source made = [&](int64_t number) {
    BenchRequest request = workload.Make(number);
    bool chat = plan.chat;
    if (!plan.from_file.empty()) {  // a warm-up asks as the file's requests do, but with words of its own
      const BenchRequest& like = plan.from_file[static_cast<size_t>(number - kWarmupNumbers) % plan.from_file.size()];
      request.max_tokens = like.max_tokens;
      request.ignore_eos = like.ignore_eos;
      chat = !like.messages.empty();
    }
    if (chat) MakeChat(request);
    return request;
  };
  const LoadRun::Source source = [&](int64_t number) {
    return plan.from_file.empty() ? made(number) : plan.from_file[static_cast<size_t>(number)];
  };
  LoadRun run(*opened.door, RealClock());
  const Interrupt::Scope scope(interrupt, [&run] { run.Stop(); });
  const absl::Status warm = WarmUp(run, plan, made);
  if (scope.signal() != 0) return kSignalled + scope.signal();
  if (!warm.ok()) {
    std::cerr << "runahead bench: the warm-up failed\n";
    return Refused(kBench, warm);
  }
  LoadOutcome outcome;
  {
    const BenchProgress progress([&] { return ProgressText(run, plan.load.requests); });
    outcome = run.Run(plan.load, source, PoissonArrivals(plan.rate, plan.workload.seed));
  }
  const int code = Report(flags, settings, outcome);
  return scope.signal() != 0 ? kSignalled + scope.signal() : code;
}

int RunBench(const BenchFlags& flags) {
  Interrupt interrupt;
  RaiseDescriptorLimit();
  const auto plan = flags.Read();
  if (!plan.ok()) return WrongUsage(kBench, plan.status());
  if (!flags.json_file().empty()) {
    const absl::Status target =
        CheckOutputFile("--json", flags.json_file(), flags.force() ? "" : "--force replaces it");
    if (!target.ok()) return WrongUsage(kBench, target);
  }
  auto opened = plan->url ? OpenUrl(flags, *plan) : OpenRouter(flags, *plan);
  if (!opened.ok()) return NotConnected(kBench, opened.status());
  return RunLoad(flags, *plan, *opened, interrupt);
}

}  // namespace

void AddBenchCommand(CLI::App& app, Command* chosen) {
  CLI::App& bench = *app.add_subcommand(
      kBench,
      "Sends a load to a router, or to any server of the OpenAI API, and prints how long its answers take: the figures "
      "of `vllm bench serve`.\n"
      "A request that fails counts in no time, and is named. Ctrl-C ends early and reports what was done.\n"
      "Exit codes: 0 done, 1 the service refused or all requests failed, 2 wrong usage, 130 Ctrl-C.");
  const auto flags = std::make_shared<BenchFlags>();
  flags->AddTo(bench);
  bench.callback([flags, chosen] { *chosen = [flags] { return RunBench(*flags); }; });
}

}  // namespace runahead
