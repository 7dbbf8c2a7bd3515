#include "client/plan/table_report.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "scheduler/partition/partition_table.h"

namespace runahead {
namespace {

// Text from a file must neither move the cursor nor break a picture.
std::string WithoutControls(std::string text) {
  for (char& c : text) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = '?';
  }
  return text;
}

// Lines of cells, each column as wide as its widest cell, the last one to the left.
std::string Align(const std::vector<std::vector<std::string>>& lines) {
  std::vector<size_t> widths(lines[0].size());
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (const auto& line : lines) {
    for (size_t i = 0; i + 1 < line.size(); ++i) {
      absl::StrAppend(&text, "  ", std::string(widths[i] - line[i].size(), ' '), line[i]);
    }
    absl::StrAppend(&text, "  ", line.back(), "\n");
  }
  return text;
}

std::string SharesText(const TableRow& row) {
  std::vector<std::string> shares;
  for (size_t i = 0; i < row.parts.size(); ++i) {
    shares.push_back(absl::StrFormat("%d (%.1f%%)", row.parts[i], 100 * row.entry.fractions[i]));
  }
  return absl::StrJoin(shares, ", ");
}

// Which columns any row of the table has something for.
struct Columns {
  bool predicted = false;
  bool measured = false;
  bool spread = false;
};

Columns ColumnsOf(const std::vector<TableRow>& rows) {
  Columns columns;
  for (const TableRow& row : rows) {
    columns.predicted |= row.entry.predicted_ttft_s.has_value();
    columns.measured |= row.entry.measured_ttft_s.has_value();
    columns.spread |= row.entry.spread_s.has_value();
  }
  return columns;
}

std::vector<std::string> HeadCells(const Columns& columns) {
  std::vector<std::string> cells = {"tokens"};
  if (columns.measured) cells.push_back("measured");
  if (columns.spread) cells.push_back("+/-");
  if (columns.predicted) cells.push_back("predicted");
  cells.push_back("tokens of each worker, head first");
  return cells;
}

std::vector<std::string> Cells(const TableRow& row, const Columns& columns) {
  const auto seconds = [](const std::optional<double>& value) { return value ? SecondsText(*value) : "-"; };
  std::vector<std::string> cells = {absl::StrCat(row.entry.tokens)};
  if (columns.measured) cells.push_back(seconds(row.entry.measured_ttft_s));
  if (columns.spread) cells.push_back(seconds(row.entry.spread_s));
  if (columns.predicted) cells.push_back(seconds(row.entry.predicted_ttft_s));
  cells.push_back(SharesText(row));
  return cells;
}

// Empty where no length has times for two widths.
std::string FastestText(const std::vector<TableRow>& rows) {
  std::map<int64_t, std::vector<const TableRow*>> by_tokens;
  for (const TableRow& row : rows) {
    if (row.ttft_s()) by_tokens[row.entry.tokens].push_back(&row);
  }
  std::vector<std::vector<std::string>> lines = {{"tokens", "width", "time", "others"}};
  for (const auto& [tokens, candidates] : by_tokens) {
    if (candidates.size() < 2) continue;
    const TableRow& best = **std::min_element(candidates.begin(), candidates.end(),
                                              [](auto* a, auto* b) { return *a->ttft_s() < *b->ttft_s(); });
    std::vector<std::string> others;
    for (const TableRow* row : candidates) {
      if (row != &best) others.push_back(absl::StrCat(SecondsText(*row->ttft_s()), " on ", row->entry.width));
    }
    lines.push_back({absl::StrCat(tokens), absl::StrCat(best.entry.width), SecondsText(*best.ttft_s()),
                     absl::StrJoin(others, ", ")});
  }
  return lines.size() == 1 ? "" : absl::StrCat("\nFastest width\n", Align(lines));
}

}  // namespace

std::vector<TableRow> RowsOf(const PartitionFile& file) {
  std::vector<PartitionEntry> entries;
  for (const PartitionFileEntry& entry : file.entries) {
    entries.push_back({.width = entry.width, .tokens = entry.tokens, .fractions = entry.fractions});
  }
  const PartitionTable table = PartitionTable::Create(std::move(entries), file.block).value();
  std::vector<TableRow> rows;
  for (const PartitionFileEntry& entry : file.entries) {
    rows.push_back({entry, table.Lookup(entry.tokens, entry.width)->parts});
  }
  std::sort(rows.begin(), rows.end(), [](const TableRow& a, const TableRow& b) {
    return std::pair(a.entry.width, a.entry.tokens) < std::pair(b.entry.width, b.entry.tokens);
  });
  return rows;
}

std::vector<std::string> DescribeTable(const PartitionFile& file) {
  std::vector<std::string> what;
  for (const std::string& value : {file.model, file.dtype}) {
    if (!value.empty()) what.push_back(value);
  }
  what.push_back(absl::StrCat("schedule ", file.schedule));
  if (!file.date.empty()) what.push_back(file.date);
  std::vector<std::string> where;
  if (!file.devices.empty()) where.push_back(absl::StrCat("line ", absl::StrJoin(file.devices, ", ")));
  if (!file.link.empty()) where.push_back(absl::StrCat("link ", file.link));
  if (file.block > 1) where.push_back(absl::StrCat("long parts between these lengths in blocks of ", file.block));
  std::vector<std::string> lines = {WithoutControls(absl::StrJoin(what, ", "))};
  if (!where.empty()) lines.push_back(WithoutControls(absl::StrJoin(where, "; ")));
  return lines;
}

std::string SecondsText(double seconds) {
  return absl::StrFormat("%.4g s", seconds);
}

std::string TableText(const PartitionFile& file) {
  const std::vector<TableRow> rows = RowsOf(file);
  const Columns columns = ColumnsOf(rows);
  std::string text = absl::StrCat(absl::StrJoin(DescribeTable(file), "\n"), "\n");
  for (auto begin = rows.begin(); begin != rows.end();) {
    const int width = begin->entry.width;
    std::vector<std::vector<std::string>> lines = {HeadCells(columns)};
    for (; begin != rows.end() && begin->entry.width == width; ++begin) lines.push_back(Cells(*begin, columns));
    absl::StrAppend(&text, "\nWidth ", width, "\n", Align(lines));
  }
  return text + FastestText(rows);
}

}  // namespace runahead
