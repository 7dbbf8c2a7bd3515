#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/base/connection.h"
#include "client/plan/plan_command.h"
#include "client/plan/table_picture.h"
#include "client/plan/table_report.h"
#include "server/base/partition_file.h"
#include "server/base/text_file.h"

namespace runahead {
namespace {

constexpr char kPlanShow[] = "plan show";

struct ShowFlags {
  std::string table;
  std::string svg;
};

int RunShow(const ShowFlags& flags) {
  const absl::StatusOr<PartitionFile> file = ReadPartitionFile(flags.table);
  if (!file.ok()) return NotRead(kPlanShow, file.status());
  if (!flags.svg.empty()) {
    std::error_code error;
    if (std::filesystem::equivalent(flags.table, flags.svg, error)) {
      return WrongUsage(kPlanShow, absl::InvalidArgumentError(
                                       absl::StrCat("--svg: ", flags.svg, " is the table itself; give another file")));
    }
    if (const absl::Status written = WriteTextFile(flags.svg, TableSvg(*file)); !written.ok()) {
      return Refused(kPlanShow, written);
    }
  }
  std::cout << TableText(*file);
  return kDone;
}

}  // namespace

void AddPlanShowCommand(CLI::App& plan, Command* chosen) {
  CLI::App& show = *plan.add_subcommand(
      "show",
      "Prints a partition table: the tokens of each worker by width and length, and the times that are known.\n"
      "Its format is in docs/planning.md.");
  const auto flags = std::make_shared<ShowFlags>();
  show.add_option("table", flags->table, "The table's file (YAML)")->required()->type_name("TABLE");
  show.add_option("--svg", flags->svg, "Writes a picture there too: bars by length, and times by width")
      ->type_name("FILE");
  show.callback([flags, chosen] { *chosen = [flags] { return RunShow(*flags); }; });
}

}  // namespace runahead
