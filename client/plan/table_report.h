// A partition table for people to read: as lines of text, and the rows that its picture shows too. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/base/partition_file.h"

namespace runahead {

struct TableRow {
  PartitionFileEntry entry;
  std::vector<int64_t> parts;  // [width] tokens, as a router cuts this very length

  // Measured, or else predicted.
  std::optional<double> ttft_s() const {
    return entry.measured_ttft_s ? entry.measured_ttft_s : entry.predicted_ttft_s;
  }
};

// By width, then by length. `file` is one that ParsePartitionFile accepts.
std::vector<TableRow> RowsOf(const PartitionFile& file);

// "some-model, bf16, schedule kvr, 2026-01-31" and "gpu-a, gpu-b; link 10 Gbit/s"; what is not known is left out, and a
// line may be missing. Control characters become '?'.
std::vector<std::string> DescribeTable(const PartitionFile& file);

// "0.2 s"
std::string SecondsText(double seconds);

// A table a width, and the fastest width of each length where times are known.
std::string TableText(const PartitionFile& file);

}  // namespace runahead
