#include "server/router/served_table.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/partition_file.h"

namespace runahead {

absl::StatusOr<ServedTable> ParseServedTable(const std::string& text, const std::string& name,
                                             const ModelInfo& served) {
  RUNAHEAD_ASSIGN_OR_RETURN(PartitionFile file, ParsePartitionFile(text, name));
  if (!file.model.empty() && !IsNameOf(served, file.model)) {
    return absl::FailedPreconditionError(absl::StrCat(
        name, ": model: the table was made for \"", file.model, "\", but this router serves ", NamesOf(served),
        ": give a table that was searched for this model, or none, to split prompts evenly"));
  }
  std::vector<PartitionEntry> entries;
  for (PartitionFileEntry& entry : file.entries) {
    const double seconds = entry.measured_ttft_s.value_or(entry.predicted_ttft_s.value_or(0));
    entries.push_back({entry.width, entry.tokens, std::move(entry.fractions), seconds});
  }
  RUNAHEAD_ASSIGN_OR_RETURN(PartitionTable table, PartitionTable::Create(std::move(entries), file.block));
  return ServedTable{std::move(table), std::move(file.dtype)};
}

}  // namespace runahead
