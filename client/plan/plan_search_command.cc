#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "client/base/connection.h"
#include "client/base/interrupt.h"
#include "client/base/output_file.h"
#include "client/base/parse.h"
#include "client/base/typed_flags.h"
#include "client/measure/measure_flags.h"
#include "client/measure/measured_search.h"
#include "client/measure/service_timer.h"
#include "client/plan/plan_command.h"
#include "client/plan/search_plan.h"
#include "client/plan/table_report.h"
#include "client/plan/table_search.h"
#include "kernels/base/status_macros.h"
#include "scheduler/partition/partition_search.h"
#include "server/base/clock.h"
#include "server/base/partition_file.h"

namespace runahead {
namespace {

constexpr char kPlanSearch[] = "plan search";

struct SearchFlags {
  RouterFlags router;
  std::string tokens;
  std::string widths;
  std::string table;
  std::string link;
  bool resume = false;
  bool force = false;
  MeasureFlags measure;
  bool json = false;
};

// What the flags ask for.
struct SearchJob {
  std::string path;
  std::vector<SearchItem> items;
  MeasureOptions measure;
  std::optional<PartitionFile> old;  // with --resume
};

absl::StatusOr<std::vector<int32_t>> ParseList(const char* flag, const std::string& text, int32_t most) {
  const auto values = ParseIds(text);
  if (!values.ok()) return InFlag(flag, values.status());
  if (values->empty()) return WrongFlag(flag, ": it is empty; give numbers with commas between them");
  for (const int32_t value : *values) {
    if (value < 1 || value > most) return WrongFlag(flag, ": ", value, " is out of range; allowed: 1 to ", most);
  }
  return *values;
}

absl::Status ReadItems(const SearchFlags& flags, SearchJob* job) {
  RUNAHEAD_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, ParseList("--tokens", flags.tokens, 1 << 30));
  RUNAHEAD_ASSIGN_OR_RETURN(std::vector<int32_t> widths, ParseList("--widths", flags.widths, kMaxSearchWidth));
  job->items = ItemsOf(std::move(tokens), std::move(widths));
  for (const SearchItem& item : job->items) {
    if (item.width > item.tokens) {
      return WrongFlag("--widths: ", item.width, " workers are more than one a token of a prompt of ", item.tokens);
    }
  }
  return flags.measure.Read(job->measure.budget, job->measure.repeats);
}

absl::Status CheckTarget(const SearchFlags& flags) {
  if (flags.resume && flags.force) return WrongFlag("give --resume or --force, not both");
  const char* const instead = "--resume completes it, --force starts anew";
  return CheckOutputFile("-o", flags.table, flags.resume || flags.force ? "" : instead);
}

absl::Status CheckFits(const std::vector<SearchItem>& items, const v1::Model& model) {
  for (const SearchItem& item : items) {
    if (item.width > model.prefill_workers()) {
      return WrongFlag("--widths: ", item.width, " is more than the ", model.prefill_workers(),
                       " prefill workers that this router has ready");
    }
    if (item.tokens >= model.context_length()) {
      return absl::OutOfRangeError(absl::StrCat("--tokens: ", item.tokens,
                                                ", and 1 of output, are more than the context of ",
                                                model.context_length(), " tokens"));
    }
  }
  return absl::OkStatus();
}

// What is kept of the old table, or a new one without entries.
absl::StatusOr<PartitionFile> Begin(const SearchJob& job, const std::string& link, const v1::Model& model) {
  PartitionFile table;
  if (job.old) {
    RUNAHEAD_RETURN_IF_ERROR(CheckResumable(*job.old, job.path, model.name(), model.dtype()));
    table = *job.old;
  }
  table.model = model.name();
  table.dtype = model.dtype();
  if (!link.empty()) table.link = link;
  return table;
}

// The exit code of a search that did not come to its end; says what there is.
int Broken(const SearchJob& job, const TableSearch& search, const absl::Status& status, int signal) {
  if (signal == 0) Refused(kPlanSearch, status);
  if (search.found() > 0) {
    std::cerr << "runahead " << kPlanSearch << ": " << job.path << " has what was finished; go on with --resume\n";
  }
  return signal == 0 ? kFailed : kSignalled + signal;
}

int SearchOn(const SearchJob& job, const SearchFlags& flags, v1::Inference::StubInterface& stub, Interrupt& interrupt) {
  const auto model = ServedModel(stub);
  if (!model.ok()) return Refused(kPlanSearch, model.status());
  auto table = Begin(job, flags.link, *model);
  if (!table.ok()) return Refused(kPlanSearch, table.status());
  if (const absl::Status fits = CheckFits(job.items, *model); !fits.ok()) return Refused(kPlanSearch, fits);
  auto ids = ServiceTimer::OrdinaryIds(stub);
  if (!ids.ok()) return Refused(kPlanSearch, ids.status());

  ServiceTimer timer(stub, *std::move(ids));
  MeasureOptions measure = job.measure;
  if (model->layers() > 0 && model->kv_bytes_per_token() > 0) {
    measure.shape.layers = model->layers();
    measure.shape.kv_bytes_per_token = static_cast<double>(model->kv_bytes_per_token());
    measure.shape.window_layers = model->window_layers();
    measure.shape.window = model->window();
  }
  TableSearch search(
      job.path, *std::move(table),
      {[&timer](absl::Span<const int64_t> parts) { return timer.Time(parts); }, [&timer] { return timer.workers(); }},
      RealClock(), measure);
  const Interrupt::Scope scope(interrupt, [&timer] { timer.Cancel(); });
  if (const absl::Status status = search.Run(job.items); !status.ok())
    return Broken(job, search, status, scope.signal());
  if (search.found() == 0)
    std::cerr << "runahead " << kPlanSearch << ": note: " << job.path << " has all of it already\n";
  std::cout << (flags.json ? search.Json() + "\n" : TableText(search.table())) << std::flush;
  return kDone;
}

int RunSearch(const SearchFlags& flags) {
  Interrupt interrupt;
  SearchJob job;
  job.path = flags.table;
  if (const absl::Status read = ReadItems(flags, &job); !read.ok()) return WrongUsage(kPlanSearch, read);
  if (const absl::Status target = CheckTarget(flags); !target.ok()) return WrongUsage(kPlanSearch, target);
  if (std::error_code error; flags.resume && std::filesystem::exists(flags.table, error)) {
    auto old = ReadPartitionFile(flags.table);
    if (!old.ok()) return NotRead(kPlanSearch, old.status());
    job.old = *std::move(old);
  }
  const auto stub = Connect(flags.router);
  if (!stub.ok()) return NotConnected(kPlanSearch, stub.status());
  return SearchOn(job, flags, **stub, interrupt);
}

}  // namespace

void AddPlanSearchCommand(CLI::App& plan, Command* chosen) {
  CLI::App& search = *plan.add_subcommand(
      "search",
      "Measures on a running chain how prompts are best cut, and writes the table for the router.\n"
      "The router must run with --experiments, and nothing else should use its workers meanwhile. TABLE is written "
      "after each entry; Ctrl-C keeps what is finished, and --resume goes on.\n"
      "Exit codes: 0 done, 1 the service refused or failed, 2 wrong usage, 130 Ctrl-C.");
  const auto flags = std::make_shared<SearchFlags>();
  const MeasureOptions defaults;
  flags->router.AddTo(search);
  search.add_option("--tokens", flags->tokens, "Lengths of prompts, as in 1024,2048,4096")
      ->required()
      ->type_name("LIST");
  search
      .add_option("--widths", flags->widths,
                  absl::StrCat("Numbers of workers, as in 1,2, each up to ", kMaxSearchWidth,
                               "; with 1 the router can tell when a chain is worth it"))
      ->required()
      ->type_name("LIST");
  search.add_option("-o", flags->table, "File to write; one that exists needs --resume or --force")
      ->required()
      ->type_name("TABLE");
  search.add_flag("--resume", flags->resume,
                  "Keeps the entries of TABLE, of the same model and dtype, and finds only what is missing");
  search.add_flag("--force", flags->force, "Writes a new table over TABLE, once the first entry is found");
  search.add_option("--link", flags->link, "What connects the workers, for people who read TABLE, as in '25 Gbit/s'")
      ->type_name("TEXT");
  AddNumber(search, "--budget", &flags->measure.budget,
            absl::StrCat("Seconds for each length and width (default ", absl::ToInt64Seconds(defaults.budget),
                         "); mind wide chains: 2 "
                         "workers need about 10 partitions, 3 up to 100, 4 up to 500"),
            "S");
  AddNumber(search, "--repeats", &flags->measure.repeats,
            absl::StrCat("Runs of a partition, of which the median counts (default ", defaults.repeats, ")"), "N");
  search.add_flag("--json", flags->json,
                  "One JSON object: {\"table\",\"model\",\"dtype\",\"entries\":[{\"width\",\"tokens\",\"parts\","
                  "\"measured_ttft_s\",\"spread_s\",..}]}");
  search.callback([flags, chosen] { *chosen = [flags] { return RunSearch(*flags); }; });
}

}  // namespace runahead
