#include "server/router/worker_failure.h"

#include "absl/strings/str_cat.h"

namespace runahead {

bool IsToBlame(const absl::Status& failure) {
  switch (failure.code()) {
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kUnimplemented:
      return true;
    default:
      return false;
  }
}

absl::Status OfWorker(const std::string& who, const absl::Status& failure) {
  absl::StatusCode code = failure.code();
  switch (code) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kOutOfRange:
      break;
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kDataLoss:
      code = absl::StatusCode::kUnavailable;
      break;
    default:
      code = absl::StatusCode::kInternal;
  }
  return absl::Status(code, absl::StrCat(who, ": ", failure.message()));
}

}  // namespace runahead
