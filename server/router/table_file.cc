#include "server/router/table_file.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/config.h"

namespace runahead {
namespace {

struct FileEntry {
  int width = 0;
  int64_t tokens = 0;
  std::vector<std::string> fractions;
};

void DeclareEntry(ConfigSchema& schema, FileEntry& entry) {
  schema.Int("width", &entry.width, {.min = 1, .max = 1024, .required = true}, "Workers of the chain");
  schema.Int("tokens", &entry.tokens, {.min = 1, .required = true}, "Tokens of the prompt that was searched");
  schema.Strings("fractions", &entry.fractions, {.min_items = 1, .required = true},
                 "Share of each worker, head first, adding up to 1");
}

absl::StatusOr<PartitionTable> Build(const std::vector<FileEntry>& file_entries) {
  std::vector<PartitionEntry> entries;
  for (const FileEntry& from : file_entries) {
    PartitionEntry& entry = entries.emplace_back();
    entry.width = from.width;
    entry.tokens = from.tokens;
    for (const std::string& text : from.fractions) {
      if (!absl::SimpleAtod(text, &entry.fractions.emplace_back())) {
        return absl::InvalidArgumentError(
            absl::StrCat("entries[", entries.size() - 1, "]: fractions: \"", text, "\" is not a number"));
      }
    }
  }
  return PartitionTable::Create(std::move(entries));
}

}  // namespace

absl::StatusOr<PartitionTable> ReadPartitionTable(const std::string& path, const ModelInfo& served) {
  int version = 0;
  std::string model;
  std::string chain_schedule;
  std::vector<FileEntry> entries;
  ConfigSchema schema;
  schema.Int("version", &version, {.min = 1, .max = 1, .required = true}, "Version of the format");
  schema.String("model", &model, {}, "Model that was measured");
  schema.String("schedule", &chain_schedule, {.one_of = {"kvr"}, .required = true}, "Schedule that was searched");
  schema.Maps<FileEntry>("entries", &entries, DeclareEntry, {.required = true}, "What was found");
  RUNAHEAD_RETURN_IF_ERROR(ReadConfigFile(path, schema));
  RUNAHEAD_RETURN_IF_ERROR(schema.Finish(path));
  if (!model.empty() && !IsNameOf(served, model)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": model: the table was made for \"", model, "\", but this router serves ", NamesOf(served),
                     ": give a table that was searched for this model, or none, to split prompts evenly"));
  }
  absl::StatusOr<PartitionTable> table = Build(entries);
  if (!table.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", table.status().message()));
  return table;
}

}  // namespace runahead
