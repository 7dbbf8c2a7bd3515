#include "client/plan/search_progress.h"

#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/plan/table_report.h"

namespace runahead {
namespace {

std::string ItemText(const SearchItem& item) {
  return absl::StrFormat("%d tokens on %d worker%s", item.tokens, item.width, item.width == 1 ? "" : "s");
}

// The reasons that tell the user something: what would help is --budget, or a quieter machine.
std::string EndText(SearchEnd end) {
  switch (end) {
    case SearchEnd::kStopped:
      return "; ended by --budget";
    case SearchEnd::kEvaluations:
      return "; ended by the number of partitions";
    case SearchEnd::kNoise:
      return "; ended by noise";
    case SearchEnd::kFinished:
      break;
  }
  return "";
}

}  // namespace

std::string RoughTime(absl::Duration duration) {
  const int64_t seconds = absl::ToInt64Seconds(absl::Ceil(duration, absl::Seconds(1)));
  if (seconds < 90) return absl::StrCat(seconds, " s");
  const int64_t minutes = (seconds + 30) / 60;
  if (minutes < 90) return absl::StrCat(minutes, " min");
  return absl::StrCat(minutes / 60, " h ", minutes % 60, " min");
}

std::string EntryLine(const SearchItem& item, const MeasuredEntry& found) {
  const std::string parts = item.width == 1 ? "" : absl::StrCat(" with ", absl::StrJoin(found.parts, " + "));
  const std::string tried = item.width == 1 ? "" : absl::StrCat(found.partitions, " partitions, ");
  return absl::StrCat(ItemText(item), ": ", SecondsText(found.ttft_s), " +- ", SecondsText(found.spread_s), parts, " (",
                      tried, found.runs, " runs, ", RoughTime(found.took), EndText(found.end), ")");
}

SearchProgress::SearchProgress() : terminal_(isatty(STDERR_FILENO) != 0) {}

void SearchProgress::Show(const SearchItem& item, int64_t runs, size_t number, size_t of, absl::Duration left) {
  if (!terminal_) return;
  shown_ = true;
  absl::FPrintF(stderr, "\r[%d/%d] %s: run %d; about %s left\033[K", number, of, ItemText(item), runs, RoughTime(left));
}

void SearchProgress::ShowProbe(const SearchItem& item, int64_t runs) {
  if (!terminal_) return;
  shown_ = true;
  absl::FPrintF(stderr, "\r[probes] %s: run %d\033[K", ItemText(item), runs);
}

void SearchProgress::Probed(const SearchItem& item, int64_t runs, absl::Duration took) {
  Clear();
  absl::FPrintF(stderr, "[probes] %s: %d runs, %s; they tell where the search of chains starts\n", ItemText(item), runs,
                RoughTime(took));
}

void SearchProgress::Finished(const SearchItem& item, const MeasuredEntry& found, size_t done, size_t of,
                              absl::Duration left) {
  Clear();
  const std::string rest = done == of ? "" : absl::StrCat(", about ", RoughTime(left), " left");
  absl::FPrintF(stderr, "[%d/%d] %s%s\n", done, of, EntryLine(item, found), rest);
}

void SearchProgress::Clear() {
  if (shown_) absl::FPrintF(stderr, "\r\033[K");
  shown_ = false;
}

}  // namespace runahead
