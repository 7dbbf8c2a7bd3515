// The one place where absl::Status and grpc::Status meet. Details travel as payloads of the absl::Status and as
// google.rpc.Status in the trailer grpc-status-details-bin.
#pragma once

#include <grpcpp/support/status.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace runahead {

// Codes are the same on both sides. A payload becomes a detail of the same type URL, and back. Messages are cut to
// kMaxStatusMessageBytes, at a whole character: all trailers together must fit into 8 KiB. One that is no UTF-8
// is sent as OneLine has it.
inline constexpr size_t kMaxStatusMessageBytes = 1024;
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

// Says when to try again (google.rpc.RetryInfo). `delay` is not negative; `status` is not OK.
absl::Status WithRetryAfter(absl::Status status, absl::Duration delay);
// Nothing where the status does not say.
std::optional<absl::Duration> RetryAfter(const absl::Status& status);

// "field: description", with the field in google.rpc.BadRequest for programs. `code` is INVALID_ARGUMENT, OUT_OF_RANGE,
// NOT_FOUND, or DEADLINE_EXCEEDED of a time that the request gave itself.
absl::Status FieldError(absl::StatusCode code, absl::string_view field, absl::string_view description);
// FieldError with INVALID_ARGUMENT.
absl::Status InvalidField(absl::string_view field, absl::string_view description);
// The first field that the status blames; nothing where it blames none.
std::optional<std::string> BlamedField(const absl::Status& status);

}  // namespace runahead
