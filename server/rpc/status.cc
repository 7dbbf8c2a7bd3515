#include "server/rpc/status.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "runahead/v1/status.pb.h"
#include "server/base/printable.h"

namespace runahead {
namespace {

constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";
constexpr char kBadRequestUrl[] = "type.googleapis.com/google.rpc.BadRequest";

// The longest beginning of `text` that fits and ends with a whole UTF-8 character.
absl::string_view CutMessage(absl::string_view text) {
  if (text.size() <= kMaxStatusMessageBytes) return text;
  size_t end = kMaxStatusMessageBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end);
}

// The same of a text that may be anything: a text that is no UTF-8 would make its message unreadable, and all with it.
std::string SentText(absl::string_view text) {
  const absl::string_view cut = CutMessage(text);
  if (google::protobuf::internal::IsStructurallyValidUTF8(cut.data(), static_cast<int>(cut.size()))) {
    return std::string(cut);
  }
  return std::string(CutMessage(OneLine(absl::UnknownError(text)).message()));
}

template <typename Message>
std::optional<Message> ReadPayload(const absl::Status& status, absl::string_view url) {
  const absl::optional<absl::Cord> payload = status.GetPayload(url);
  Message message;
  if (!payload.has_value() || !message.ParseFromString(std::string(*payload))) return std::nullopt;
  return message;
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const auto code = static_cast<grpc::StatusCode>(status.code());
  const std::string message = SentText(status.message());
  v1::RpcStatus details;
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    google::protobuf::Any& detail = *details.add_details();
    detail.set_type_url(std::string(url));
    detail.set_value(std::string(payload));
  });
  if (details.details().empty()) return grpc::Status(code, message);
  details.set_code(code);
  details.set_message(message);
  return grpc::Status(code, message, details.SerializeAsString());
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  v1::RpcStatus details;
  if (!details.ParseFromString(status.error_details())) return result;  // somebody else's format: the rest still holds
  for (const google::protobuf::Any& detail : details.details()) {
    result.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
  return result;
}

absl::Status WithRetryAfter(absl::Status status, absl::Duration delay) {
  RUNAHEAD_CHECK(!status.ok() && delay >= absl::ZeroDuration());
  v1::RetryInfo info;
  absl::Duration rest;
  info.mutable_retry_delay()->set_seconds(absl::IDivDuration(delay, absl::Seconds(1), &rest));
  info.mutable_retry_delay()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
  status.SetPayload(kRetryInfoUrl, absl::Cord(info.SerializeAsString()));
  return status;
}

std::optional<absl::Duration> RetryAfter(const absl::Status& status) {
  const auto info = ReadPayload<v1::RetryInfo>(status, kRetryInfoUrl);
  if (!info.has_value() || !info->has_retry_delay()) return std::nullopt;
  const absl::Duration delay =
      absl::Seconds(info->retry_delay().seconds()) + absl::Nanoseconds(info->retry_delay().nanos());
  if (delay < absl::ZeroDuration()) return std::nullopt;
  return delay;
}

absl::Status FieldError(absl::StatusCode code, absl::string_view field, absl::string_view description) {
  absl::Status status(code, absl::StrCat(field, ": ", description));
  v1::BadRequest request;
  v1::BadRequest::FieldViolation& violation = *request.add_field_violations();
  violation.set_field(std::string(field));
  violation.set_description(SentText(description));
  status.SetPayload(kBadRequestUrl, absl::Cord(request.SerializeAsString()));
  return status;
}

absl::Status InvalidField(absl::string_view field, absl::string_view description) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, description);
}

std::optional<std::string> BlamedField(const absl::Status& status) {
  const auto request = ReadPayload<v1::BadRequest>(status, kBadRequestUrl);
  if (!request.has_value() || request->field_violations().empty()) return std::nullopt;
  return request->field_violations(0).field();
}

}  // namespace runahead
