#include "server/router/live_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/config.h"
#include "server/base/logging.h"
#include "server/router/served_table.h"

namespace runahead {

absl::StatusOr<std::unique_ptr<LiveTable>> LiveTable::Open(const std::string& path, const ModelInfo& served) {
  auto table = std::make_unique<LiveTable>();
  if (path.empty()) return table;
  table->served_ = served;
  table->file_ = FollowedFile(path, kMaxConfigBytes);
  if (const absl::Status taken = table->Take(); !taken.ok()) {
    return absl::Status(taken.code(), absl::StrCat("table: ", taken.message()));
  }
  return table;
}

std::shared_ptr<const PartitionTable> LiveTable::Get() const {
  MutexLock lock(mu_);
  return table_;
}

absl::Status LiveTable::Take() {
  RUNAHEAD_RETURN_IF_ERROR(file_.text().status());
  RUNAHEAD_ASSIGN_OR_RETURN(ServedTable parsed, ParseServedTable(*file_.text(), file_.path(), served_));
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
  if (!file_.Look(now)) return;
  const absl::Status taken = Take();
  metrics.CountTableReload(taken.ok() ? TableReload::kOk : TableReload::kError);
  if (taken.ok()) {
    LogInfo("table", file_.path(), " has changed: in use from now on");
  } else {
    LogWarning("table", taken.message(), "; the partition table from before stays in use");
  }
}

}  // namespace runahead
