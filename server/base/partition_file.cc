#include "server/base/partition_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "kernels/base/status_macros.h"
#include "server/base/config.h"
#include "server/base/printable.h"
#include "server/base/text_file.h"

namespace runahead {
namespace {

constexpr double kSumTolerance = 1e-3;  // as PartitionTable's
constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();

// An entry as the file has it.
struct Item {
  std::string where;
  PartitionFileEntry entry;
  double predicted_ttft_s = kAbsent;
  double measured_ttft_s = kAbsent;
  double spread_s = kAbsent;
};

void DeclareItem(ConfigSchema& schema, Item& item) {
  constexpr DoubleLimits kSeconds = {.min = 1e-9, .max = 1e6};
  schema.Place(&item.where);
  schema.Int("width", &item.entry.width, {.min = 1, .max = 1024, .required = true}, "Workers of the chain");
  schema.Int("tokens", &item.entry.tokens, {.min = 1, .max = int64_t{1} << 30, .required = true},
             "Tokens of the prompt that was searched");
  schema.Doubles("fractions", &item.entry.fractions, {.min = 1e-9, .max = 1}, {.min_items = 1, .required = true},
                 "Share of each worker, head first, adding up to 1");
  schema.Double("predicted_ttft_s", &item.predicted_ttft_s, kSeconds, "Simulated time to first token");
  schema.Double("measured_ttft_s", &item.measured_ttft_s, kSeconds, "Median of the measured times to first token");
  schema.Double("spread_s", &item.spread_s, {.min = 0, .max = 1e6}, "Half of the range of the measurements");
}

void DeclareFile(ConfigSchema& schema, int& version, PartitionFile& file, std::vector<Item>& items) {
  schema.Int("version", &version, {.min = 1, .max = 1, .required = true}, "Version of the format");
  schema.String("model", &file.model, {}, "Model that was measured");
  schema.String("dtype", &file.dtype, {}, "Type that it was measured in");
  schema.Strings("devices", &file.devices, {}, "Devices of the line, in its order");
  schema.String("link", &file.link, {}, "Link between neighbours");
  schema.String("schedule", &file.schedule, {.one_of = {"kvr"}, .required = true}, "Schedule that was searched");
  schema.String("date", &file.date, {}, "When it was searched");
  schema.Int("block", &file.block, {.min = 1, .max = 1 << 20}, "Rows that the kernels compute together");
  schema.Maps<Item>("entries", &items, DeclareItem, {.min_items = 1, .required = true}, "What was found");
}

std::optional<double> Given(double value) {
  return std::isnan(value) ? std::nullopt : std::optional(value);
}

// Errors come without the place.
absl::Status CheckFractions(const PartitionFileEntry& entry) {
  if (entry.fractions.size() != static_cast<size_t>(entry.width)) {
    return absl::InvalidArgumentError(
        absl::StrCat("fractions: ", entry.fractions.size(), " given, width ", entry.width, " needs as many"));
  }
  const double sum = std::accumulate(entry.fractions.begin(), entry.fractions.end(), 0.0);
  if (std::abs(sum - 1) > kSumTolerance) {
    return absl::InvalidArgumentError(absl::StrCat("fractions: they add up to ", sum, ", not to 1"));
  }
  return absl::OkStatus();
}

absl::StatusOr<PartitionFileEntry> EntryOf(const Item& item, const PartitionFile& file) {
  PartitionFileEntry entry = item.entry;
  if (entry.tokens < entry.width) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokens: ", entry.tokens, " are less than one for each of ", entry.width, " workers"));
  }
  if (!file.devices.empty() && file.devices.size() < static_cast<size_t>(entry.width)) {
    return absl::InvalidArgumentError(
        absl::StrCat("width: ", entry.width, ", but devices lists a line of ", file.devices.size()));
  }
  RUNAHEAD_RETURN_IF_ERROR(CheckFractions(entry));
  entry.predicted_ttft_s = Given(item.predicted_ttft_s);
  entry.measured_ttft_s = Given(item.measured_ttft_s);
  entry.spread_s = Given(item.spread_s);
  if (entry.spread_s && !entry.measured_ttft_s) {
    return absl::InvalidArgumentError("spread_s: there is no measured_ttft_s that it could be the spread of");
  }
  return entry;
}

absl::Status AddEntries(const std::vector<Item>& items, PartitionFile& file) {
  std::map<std::pair<int, int64_t>, const Item*> seen;
  for (const Item& item : items) {
    const auto refuse = [&](const auto&... text) {
      return absl::InvalidArgumentError(absl::StrCat(item.where, ": entries[", file.entries.size(), "]: ", text...));
    };
    absl::StatusOr<PartitionFileEntry> entry = EntryOf(item, file);
    if (!entry.ok()) return refuse(entry.status().message());
    const auto [first, added] = seen.emplace(std::pair(entry->width, entry->tokens), &item);
    if (!added) {
      return refuse("a second entry for width ", entry->width, " and tokens ", entry->tokens, "; the first is at ",
                    first->second->where);
    }
    file.entries.push_back(*std::move(entry));
  }
  return absl::OkStatus();
}

// Where the file has `key`: "table.yaml:7".
const std::string& PlaceOf(const ConfigValue& file, absl::string_view key) {
  const auto found =
      std::find_if(file.items.begin(), file.items.end(), [&](const auto& item) { return item.key == key; });
  return found == file.items.end() ? file.where : found->where;
}

absl::Status CheckDate(const std::string& date, const std::string& where) {
  absl::Time time;
  if (date.empty() || absl::ParseTime("%Y-%m-%d", date, &time, nullptr) ||
      absl::ParseTime(absl::RFC3339_full, date, &time, nullptr)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(where, ": date: '", Printable(date, /*most=*/40),
                                                 "' is no date; allowed: 2026-01-31 or 2026-01-31T12:00:00Z"));
}

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      absl::StrAppend(&quoted, "\\", std::string(1, c));
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      absl::StrAppendFormat(&quoted, "\\x%02x", c);
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

// The shortest text that is read back as this very number.
std::string Shortest(double value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
}

std::string PrintEntry(const PartitionFileEntry& entry) {
  std::string text = absl::StrCat(
      "  - {width: ", entry.width, ", tokens: ", entry.tokens, ", fractions: [",
      absl::StrJoin(entry.fractions, ", ", [](std::string* out, double value) { out->append(Shortest(value)); }), "]");
  const auto add = [&](const char* key, const std::optional<double>& seconds) {
    if (seconds) absl::StrAppend(&text, ", ", key, ": ", *seconds);
  };
  add("predicted_ttft_s", entry.predicted_ttft_s);
  add("measured_ttft_s", entry.measured_ttft_s);
  add("spread_s", entry.spread_s);
  return text + "}\n";
}

}  // namespace

absl::StatusOr<PartitionFile> ParsePartitionFile(const std::string& text, const std::string& name) {
  int version = 0;
  PartitionFile file;
  std::vector<Item> items;
  ConfigSchema schema;
  DeclareFile(schema, version, file, items);
  RUNAHEAD_ASSIGN_OR_RETURN(const ConfigValue root, ParseConfigText(text, name));
  RUNAHEAD_RETURN_IF_ERROR(schema.Apply(root));
  if (version == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name,
                     ":1: version is missing: write 'version: 1' here if the file is what docs/planning.md calls a "
                     "partition table, else search a new one with runahead plan search"));
  }
  RUNAHEAD_RETURN_IF_ERROR(schema.Finish(root.where));
  RUNAHEAD_RETURN_IF_ERROR(CheckDate(file.date, PlaceOf(root, "date")));
  RUNAHEAD_RETURN_IF_ERROR(AddEntries(items, file));
  return file;
}

absl::StatusOr<PartitionFile> ReadPartitionFile(const std::string& path) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxConfigBytes));
  return ParsePartitionFile(text, path);
}

absl::StatusOr<std::string> PrintPartitionFile(const PartitionFile& file) {
  std::string text = "version: 1\n";
  const auto add = [&](const char* key, const std::string& value) {
    if (!value.empty()) absl::StrAppend(&text, key, ": ", Quoted(value), "\n");
  };
  add("model", file.model);
  add("dtype", file.dtype);
  if (!file.devices.empty()) {
    const auto quote = [](std::string* out, const std::string& device) { out->append(Quoted(device)); };
    absl::StrAppend(&text, "devices: [", absl::StrJoin(file.devices, ", ", quote), "]\n");
  }
  add("link", file.link);
  add("schedule", file.schedule);
  add("date", file.date);
  if (file.block != 1) absl::StrAppend(&text, "block: ", file.block, "\n");
  absl::StrAppend(&text, "entries:\n");
  for (const PartitionFileEntry& entry : file.entries) text += PrintEntry(entry);
  RUNAHEAD_RETURN_IF_ERROR(ParsePartitionFile(text, "the new table").status());
  return text;
}

absl::Status WritePartitionFile(const std::string& path, const PartitionFile& file) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string text, PrintPartitionFile(file));
  return WriteTextFile(path, text);
}

}  // namespace runahead
