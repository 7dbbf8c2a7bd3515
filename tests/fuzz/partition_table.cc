// The file of a partition table: what is read can be written, is read back as the same, and cuts prompts.
#include "scheduler/partition/partition_table.h"

#include <numeric>

#include "server/base/partition_file.h"
#include "tests/fuzz/fuzz.h"

namespace runahead {
namespace {

void CheckLookups(const PartitionFile& file) {
  std::vector<PartitionEntry> entries;
  for (const PartitionFileEntry& entry : file.entries) {
    entries.push_back({entry.width, entry.tokens, entry.fractions,
                       entry.measured_ttft_s.value_or(entry.predicted_ttft_s.value_or(0))});
  }
  const auto table = PartitionTable::Create(std::move(entries), file.block);
  RUNAHEAD_CHECK(table.ok());
  for (const PartitionFileEntry& entry : file.entries) {
    for (const int64_t tokens : {int64_t{entry.width}, entry.tokens, entry.tokens * 3 / 2 + 1}) {
      const auto cut = table->Lookup(tokens, entry.width);
      RUNAHEAD_CHECK(cut.ok() && cut->parts.size() == static_cast<size_t>(entry.width));
      for (const int64_t part : cut->parts) RUNAHEAD_CHECK(part >= 1);
      RUNAHEAD_CHECK(std::accumulate(cut->parts.begin(), cut->parts.end(), int64_t{0}) == tokens);
    }
  }
}

}  // namespace

void Fuzz(std::string_view input) {
  const auto file = ParsePartitionFile(std::string(input), "t.yaml");
  if (!file.ok()) return fuzz::CheckRefusal(file.status(), "t.yaml");
  const auto text = PrintPartitionFile(*file);
  RUNAHEAD_CHECK(text.ok());
  const auto again = ParsePartitionFile(*text, "t.yaml");
  RUNAHEAD_CHECK(again.ok() && again->model == file->model && again->devices == file->devices);
  RUNAHEAD_CHECK(again->entries.size() == file->entries.size());
  for (size_t i = 0; i < file->entries.size(); ++i) {
    RUNAHEAD_CHECK(again->entries[i].fractions == file->entries[i].fractions);
  }
  CheckLookups(*file);
}

}  // namespace runahead
