#include "server/router/live_table.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/config.h"
#include "server/base/logging.h"
#include "server/base/text_file.h"
#include "server/router/served_table.h"

namespace runahead {
namespace {

// Whether it is something that is no file: a pipe, a folder.
bool IsOther(const std::string& path) {
  std::error_code error;
  const auto type = std::filesystem::status(path, error).type();
  return type != std::filesystem::file_type::regular && type != std::filesystem::file_type::not_found;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LiveTable>> LiveTable::Open(const std::string& path, const ModelInfo& served) {
  auto table = std::make_unique<LiveTable>();
  if (path.empty()) return table;
  table->served_ = served;
  table->seen_ = ReadTextFile(path, kMaxConfigBytes);
  table->path_ = path;
  if (const absl::Status taken = table->Take(table->seen_); !taken.ok()) {
    return absl::Status(taken.code(), absl::StrCat("table: ", taken.message()));
  }
  if (IsOther(path)) table->path_.clear();  // it has said all
  return table;
}

std::shared_ptr<const PartitionTable> LiveTable::Get() const {
  MutexLock lock(mu_);
  return table_;
}

absl::Status LiveTable::Take(const absl::StatusOr<std::string>& text) {
  RUNAHEAD_RETURN_IF_ERROR(text.status());
  RUNAHEAD_ASSIGN_OR_RETURN(ServedTable parsed, ParseServedTable(*text, path_, served_));
  auto table = std::make_shared<const PartitionTable>(std::move(parsed.table));
  dtype_ = std::move(parsed.dtype);
  doubted_.clear();
  MutexLock lock(mu_);
  table_ = std::move(table);
  return absl::OkStatus();
}

std::optional<std::string> LiveTable::DoubtOf(const std::string& dtype) {
  if (dtype_.empty() || dtype.empty() || dtype == dtype_ || dtype == doubted_) return std::nullopt;
  doubted_ = dtype;
  return absl::StrCat("the partition table was measured in ", dtype_, ", but the workers compute in ", dtype,
                      ": it stays in use, with parts and widths that may not be the best; search one in ", dtype);
}

void LiveTable::Poll(absl::Time now, RouterMetrics& metrics) {
  if (path_.empty() || now < next_look_) return;
  next_look_ = now + kTablePeriod;
  // Text is compared, not time and size: these may stay the same over a change, and change without one.
  absl::StatusOr<std::string> text = absl::FailedPreconditionError(absl::StrCat(path_, " is no file any more"));
  if (!IsOther(path_)) text = ReadTextFile(path_, kMaxConfigBytes);  // a pipe would be waited for
  if (text == seen_) return;
  seen_ = std::move(text);
  const absl::Status taken = Take(seen_);
  metrics.CountTableReload(taken.ok() ? TableReload::kOk : TableReload::kError);
  if (taken.ok()) {
    LogInfo("table", path_, " has changed: in use from now on");
  } else {
    LogWarning("table", taken.message(), "; the partition table from before stays in use");
  }
}

}  // namespace runahead
