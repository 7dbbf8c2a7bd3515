// The file of a partition table (docs/planning.md): what `runahead plan search` writes and the router and
// `runahead plan show` read. Plain values; scheduler/partition/partition_table.h makes a lookup table of the entries.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace runahead {

struct PartitionFileEntry {
  int width = 0;                           // workers of the chain, 1 to 1024
  int64_t tokens = 0;                      // context length, width to 2^30
  std::vector<double> fractions;           // [width], head first, each at least 1e-9, adding up to 1 within 0.001
  std::optional<double> predicted_ttft_s;  // time to first token, above 0
  std::optional<double> measured_ttft_s;   // median
  std::optional<double> spread_s;          // half of the range of what measured_ttft_s is the median of
};

struct PartitionFile {
  std::string model;                 // that was measured; empty: any
  std::string dtype;                 // that it was measured in; empty: not known
  std::vector<std::string> devices;  // of the line, in its order; empty: not known, else at least the widest entry's
  std::string link;                  // between neighbours, in words; empty: not known
  std::string schedule = "kvr";      // kvr is the only one that has a table
  std::string date;                  // 2026-01-31 or 2026-01-31T12:00:00Z; empty: not known
  int64_t block = 1;                 // see RoundParts
  std::vector<PartitionFileEntry> entries;  // at least 1, at most one of a width and length, in any order
};

// INVALID_ARGUMENT for what is no such file, naming the line ("table.yaml:7"), the key or entry, and what is allowed.
// `name` stands for the file.
absl::StatusOr<PartitionFile> ParsePartitionFile(const std::string& text, const std::string& name);

// The same from `path`; errors are ReadTextFile's too.
absl::StatusOr<PartitionFile> ReadPartitionFile(const std::string& path);

// Times keep 6 digits, all else is read back as it is. What could not be read back is INVALID_ARGUMENT.
absl::StatusOr<std::string> PrintPartitionFile(const PartitionFile& file);

// Prints to `path` as WriteTextFile does: the old file or the new one, whatever happens.
absl::Status WritePartitionFile(const std::string& path, const PartitionFile& file);

}  // namespace runahead
