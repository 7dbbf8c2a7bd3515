#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/base/command.h"
#include "client/base/connection.h"
#include "client/base/interrupt.h"
#include "client/base/output_file.h"
#include "client/base/parse.h"
#include "client/base/typed_flags.h"
#include "client/measure/measure_flags.h"
#include "client/measure/service_timer.h"
#include "client/plan/cost_file.h"
#include "client/plan/search_progress.h"
#include "client/profile/line_timing.h"
#include "client/profile/profile_report.h"
#include "kernels/base/status_macros.h"
#include "scheduler/partition/partition_search.h"
#include "server/base/text_file.h"

namespace runahead {
namespace {

constexpr char kProfile[] = "profile";

struct ProfileFlags {
  RouterFlags router;
  std::string file;
  bool force = false;
  std::string tokens;
  MeasureFlags measure;
  bool json = false;
};

absl::StatusOr<LineTimingOptions> ReadOptions(const ProfileFlags& flags) {
  LineTimingOptions options;
  if (!flags.tokens.empty()) {
    const auto lengths = ParseIds(flags.tokens);
    if (!lengths.ok()) return InFlag("--tokens", lengths.status());
    options.tokens.assign(lengths->begin(), lengths->end());
    std::sort(options.tokens.begin(), options.tokens.end());
    options.tokens.erase(std::unique(options.tokens.begin(), options.tokens.end()), options.tokens.end());
    if (options.tokens.empty() || options.tokens[0] < 2) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--tokens: '", flags.tokens, "' is no list of lengths of at least 2, as in 256,512,1024,2048,4096"));
    }
  }
  RUNAHEAD_RETURN_IF_ERROR(flags.measure.Read(options.budget, options.repeats));
  return options;
}

// What the router says of itself: FAILED_PRECONDITION, OUT_OF_RANGE where it cannot be measured as asked.
absl::Status FitToLine(const v1::Model& model, LineTimingOptions* options) {
  if (model.prefill_workers() < 1) return absl::UnavailableError("no prefill worker is ready");
  if (model.layers() < 1 || model.kv_bytes_per_token() < 1) {
    return absl::FailedPreconditionError(
        "the router does not say how many layers the model has: it is older than this command");
  }
  options->workers = std::min(model.prefill_workers(), kMaxSearchWidth);
  options->longest = model.context_length() - 1;
  const int64_t least = 2 * options->workers;
  if (options->longest < least) {
    return absl::OutOfRangeError(absl::StrCat("a context of ", model.context_length(),
                                              " tokens is too short to be cut between ", options->workers, " workers"));
  }
  for (const int64_t tokens : options->tokens) {
    if (tokens > options->longest) {
      return absl::OutOfRangeError(absl::StrCat(
          "--tokens: ", tokens, ", and 1 of output, are more than the context of ", model.context_length(), " tokens"));
    }
    if (tokens < least) {
      return absl::OutOfRangeError(absl::StrCat("--tokens: ", tokens, " are too few for ", options->workers,
                                                " workers; allowed: from ", least, " on"));
    }
  }
  return absl::OkStatus();
}

// A line on the terminal that changes in place.
class LiveLine {
 public:
  LiveLine() : terminal_(isatty(STDERR_FILENO) != 0) {}
  ~LiveLine() { Clear(); }
  void Show(const std::string& text) {
    if (!terminal_) return;
    shown_ = true;
    absl::FPrintF(stderr, "\r%s\033[K", text);
  }
  void Clear() {
    if (shown_) absl::FPrintF(stderr, "\r\033[K");
    shown_ = false;
  }

 private:
  const bool terminal_;
  bool shown_ = false;
};

// The first run tells the order of the line, and whether the router lets us choose.
absl::StatusOr<LineTimes> Measure(const LineTimingOptions& options, ServiceTimer& timer) {
  LiveLine shown;
  RUNAHEAD_RETURN_IF_ERROR(timer.Time(std::vector<int64_t>(options.workers, 1)).status());
  const ChainTimer time = [&timer](absl::Span<const int64_t> parts) { return timer.TimeFromHead(parts); };
  return TimeLine(options, time, RealClock(), [&](const Probe& probe, int round, absl::Duration left) {
    const size_t width = probe.parts.size();
    shown.Show(absl::StrCat(
        round == 0 ? std::string("[warming up]") : absl::StrCat("[", round, "/", options.repeats, "]"), " ",
        probe.tokens, " tokens on ", width, width == 1 ? " worker" : " workers", "; about ", RoughTime(left), " left"));
  });
}

int Profile(const ProfileFlags& flags, LineTimingOptions options, v1::Inference::StubInterface& stub,
            Interrupt& interrupt) {
  const auto served = ServedModel(stub);
  if (!served.ok()) return Refused(kProfile, served.status());
  if (const absl::Status fits = FitToLine(*served, &options); !fits.ok()) return Refused(kProfile, fits);
  auto ids = ServiceTimer::OrdinaryIds(stub);
  if (!ids.ok()) return Refused(kProfile, ids.status());
  ServiceTimer timer(stub, *std::move(ids));
  absl::StatusOr<LineTimes> times;
  {
    const Interrupt::Scope scope(interrupt, [&timer] { timer.Cancel(); });
    times = Measure(options, timer);
    if (scope.signal() != 0) return kSignalled + scope.signal();
  }
  if (!times.ok()) return Refused(kProfile, times.status());

  CostModel start;
  start.layers = served->layers();
  start.kv_bytes_per_token = static_cast<double>(served->kv_bytes_per_token());
  start.window_layers = served->window_layers();
  start.window = served->window();
  const auto profile = ProfileLine(start, times->probes, options.workers);
  if (!profile.ok()) return Refused(kProfile, profile.status());
  const ProfiledLine line{served->name(),
                          served->dtype(),
                          timer.workers(),
                          absl::FormatTime("%Y-%m-%d", RealClock().Now(), absl::UTCTimeZone()),
                          {served->lane_profiles().begin(), served->lane_profiles().end()}};
  const auto text = PrintCostFile(profile->fit.model, ProfileComments(line, *times, *profile));
  if (!text.ok()) return Refused(kProfile, text.status());
  if (!flags.file.empty()) {
    const absl::Status written = WriteTextFile(flags.file, *text);
    if (!written.ok()) return Refused(kProfile, written);
  }
  std::cerr << ProfileText(line, *times, *profile);
  std::cout << (flags.json ? ProfileJson(flags.file, line, *times, *profile) + "\n" : *text) << std::flush;
  return kDone;
}

int RunProfile(const ProfileFlags& flags) {
  Interrupt interrupt;
  auto options = ReadOptions(flags);
  if (!options.ok()) return WrongUsage(kProfile, options.status());
  if (!flags.file.empty()) {
    const absl::Status target = CheckOutputFile("-o", flags.file, flags.force ? "" : "--force replaces it");
    if (!target.ok()) return WrongUsage(kProfile, target);
  }
  const auto stub = Connect(flags.router);
  if (!stub.ok()) return NotConnected(kProfile, stub.status());
  return Profile(flags, *std::move(options), **stub, interrupt);
}

}  // namespace

void AddProfileCommand(CLI::App& app, Command* chosen) {
  CLI::App& profile = *app.add_subcommand(
      kProfile,
      "Measures what the model costs on a line of workers and on the links between them: a cost file for "
      "`plan simulate`.\n"
      "The router must run with --experiments, and nothing else should use its workers meanwhile. The file is written "
      "at the end, as a whole; Ctrl-C and failures leave it as it was.\n"
      "Exit codes: 0 done, 1 the service refused or failed, 2 wrong usage, 130 Ctrl-C.");
  const auto flags = std::make_shared<ProfileFlags>();
  const LineTimingOptions defaults;
  flags->router.AddTo(profile);
  profile.add_option("-o", flags->file, "File to write, too; one that exists needs --force")->type_name("FILE");
  profile.add_flag("--force", flags->force, "Writes over FILE");
  profile
      .add_option("--tokens", flags->tokens,
                  "Lengths of prompts, as in 256,512,1024,2048,4096: from short to as long as you mean to ask for, at "
                  "least five (default: from 64 on by doubling, as long as the budget and the context allow)")
      ->type_name("LIST");
  AddNumber(profile, "--budget", &flags->measure.budget,
            absl::StrCat("Seconds for all (default ", absl::ToInt64Seconds(defaults.budget),
                         "); each length and worker runs at least once, whatever it takes"),
            "S");
  AddNumber(profile, "--repeats", &flags->measure.repeats,
            absl::StrCat("Runs of each, of which the median counts (default ", defaults.repeats, ")"), "N");
  profile.add_flag("--json", flags->json,
                   "One JSON object: {\"fixed_s\",\"linear_s_per_token\",..,\"workers\":[{\"name\",\"factor\"}],"
                   "\"links\":[..],\"runs\":[..],\"poor\"}");
  profile.callback([flags, chosen] { *chosen = [flags] { return RunProfile(*flags); }; });
}

}  // namespace runahead
