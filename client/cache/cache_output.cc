#include "client/cache/cache_output.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace runahead {
namespace {

using Json = nlohmann::ordered_json;

std::string MemoryText(int64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  if (mib < 1) return absl::StrFormat("%.1f KiB", mib * 1024);
  return mib < 1024 ? absl::StrFormat("%.1f MiB", mib) : absl::StrFormat("%.1f GiB", mib / 1024);
}

// Of a worker that is not there nobody knows the name, nor what it can.
template <typename Worker>
std::string NameOf(const Worker& worker) {
  return worker.name().empty() ? worker.address() : worker.name();
}

std::string OfKey(const std::string& key) {
  return key.empty() ? "" : absl::StrCat(" of the API key \"", key, "\"");
}

std::string TotalsText(const v1::ShowCacheResponse::Totals& totals) {
  const int64_t known = totals.known_by_decode() + totals.known_by_chain();
  const double percent =
      totals.prompt_tokens() > 0 ? 100.0 * static_cast<double>(known) / static_cast<double>(totals.prompt_tokens()) : 0;
  return absl::StrFormat(
      "prompts: %d tokens since the router's start, %d of them known (%.1f%%): %d where the decode worker computed the "
      "rest, %d where a chain did\n",
      totals.prompt_tokens(), known, percent, totals.known_by_decode(), totals.known_by_chain());
}

using Row = std::vector<std::string>;

Row RowOfWorker(const v1::CacheOfWorker& worker) {
  Row row = {NameOf(worker)};
  if (worker.has_memory()) {
    const v1::KeptMemory& memory = worker.memory();
    for (const int64_t bytes :
         {memory.kept_bytes(), memory.used_bytes(), memory.capacity_bytes(), memory.evicted_bytes()}) {
      row.push_back(MemoryText(bytes));
    }
  } else {
    row.insert(row.end(), 4, "-");
  }
  row.push_back(absl::StrCat(worker.index_tokens()));
  for (const bool able : {worker.continues(), worker.lends()}) {
    row.push_back(worker.name().empty() ? "-" : able ? "yes" : "no");
  }
  return row;
}

// Columns but the first are flushed right.
std::string AlignedText(const std::vector<Row>& rows) {
  std::vector<size_t> widths(rows[0].size());
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(widths[i] - row[i].size(), ' ');
      absl::StrAppend(&text, i == 0 ? row[i] + blanks : "  " + blanks + row[i]);
    }
    text += "\n";
  }
  return text;
}

}  // namespace

std::string CacheText(const v1::ShowCacheResponse& shown) {
  std::string text;
  if (!shown.on()) text += "the router looks for no known beginnings (known_beginnings: off)\n";
  absl::StrAppend(&text, "index", OfKey(shown.key()), ": ", shown.index_tokens(), " tokens in ",
                  MemoryText(shown.index_bytes()), " of the router's memory\n");
  if (shown.has_totals()) text += TotalsText(shown.totals());
  std::vector<Row> rows = {
      {"decode worker", "kept", "in use", "capacity", "evicted", "index tokens", "continues", "lends"}};
  for (const v1::CacheOfWorker& worker : shown.workers()) rows.push_back(RowOfWorker(worker));
  absl::StrAppend(&text, "\n", AlignedText(rows));
  for (const v1::CacheOfWorker& worker : shown.workers()) {
    if (!worker.error().empty()) absl::StrAppend(&text, NameOf(worker), " could not be asked: ", worker.error(), "\n");
  }
  return text;
}

std::string EmptiedText(const v1::EmptyCacheResponse& emptied) {
  std::string text =
      absl::StrCat("index", OfKey(emptied.key()), ": ", emptied.index_tokens(), " tokens were forgotten\n");
  for (const v1::EmptiedWorker& worker : emptied.workers()) {
    absl::StrAppend(&text, NameOf(worker), ": ",
                    worker.error().empty() ? MemoryText(worker.freed_bytes()) + " were freed"
                                           : absl::StrCat("not emptied: ", worker.error()),
                    "\n");
  }
  return text;
}

std::string CacheJson(const v1::ShowCacheResponse& shown) {
  Json totals;
  if (shown.has_totals()) {
    totals = {{"prompt_tokens", shown.totals().prompt_tokens()},
              {"known_by_decode", shown.totals().known_by_decode()},
              {"known_by_chain", shown.totals().known_by_chain()}};
  }
  Json workers = Json::array();
  for (const v1::CacheOfWorker& worker : shown.workers()) {
    const v1::KeptMemory& memory = worker.memory();
    const auto bytes = [&worker](int64_t known) { return worker.has_memory() ? Json(known) : Json(); };
    const auto able = [&worker](bool known) { return worker.name().empty() ? Json() : Json(known); };
    workers.push_back({{"name", worker.name()},
                       {"address", worker.address()},
                       {"kept_bytes", bytes(memory.kept_bytes())},
                       {"used_bytes", bytes(memory.used_bytes())},
                       {"capacity_bytes", bytes(memory.capacity_bytes())},
                       {"evicted_bytes", bytes(memory.evicted_bytes())},
                       {"index_tokens", worker.index_tokens()},
                       {"continues", able(worker.continues())},
                       {"lends", able(worker.lends())},
                       {"error", worker.error()}});
  }
  return Json{{"on", shown.on()},
              {"key", shown.key()},
              {"index_tokens", shown.index_tokens()},
              {"index_bytes", shown.index_bytes()},
              {"totals", std::move(totals)},
              {"workers", std::move(workers)}}
      .dump();
}

std::string EmptiedJson(const v1::EmptyCacheResponse& emptied) {
  Json workers = Json::array();
  for (const v1::EmptiedWorker& worker : emptied.workers()) {
    workers.push_back({{"name", worker.name()},
                       {"address", worker.address()},
                       {"emptied", worker.error().empty()},
                       {"freed_bytes", worker.freed_bytes()},
                       {"error", worker.error()}});
  }
  return Json{{"key", emptied.key()}, {"index_tokens", emptied.index_tokens()}, {"workers", std::move(workers)}}.dump();
}

}  // namespace runahead
