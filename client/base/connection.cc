#include "client/base/connection.h"

#include <algorithm>
#include <iostream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/base/command.h"
#include "client/base/parse.h"
#include "client/base/progress.h"
#include "kernels/base/status_macros.h"
#include "server/base/address.h"
#include "server/rpc/channel.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

// Enough for a router that is just being started again.
constexpr absl::Duration kConnectTimeout = absl::Seconds(5);
constexpr absl::Duration kListTimeout = absl::Seconds(30);

}  // namespace

absl::StatusOr<std::unique_ptr<v1::Inference::StubInterface>> Connect(const std::string& router,
                                                                      absl::Duration timeout) {
  RUNAHEAD_RETURN_IF_ERROR(InFlag("--router", ParseHostPort(router).status()));
  const auto channel = MakeChannel(router, kPublicKeepAlive);
  const Progress progress(absl::StrCat("Waiting for ", router));
  const absl::Status ready = WaitReady(*channel, router, std::min(timeout, kConnectTimeout));
  if (!ready.ok() && timeout < kConnectTimeout) {
    return absl::DeadlineExceededError(absl::StrCat("nothing answered at ", router, " within the ",
                                                    absl::FormatDuration(timeout),
                                                    " of --timeout; is a router running there?"));
  }
  RUNAHEAD_RETURN_IF_ERROR(ready);
  return v1::Inference::NewStub(channel);
}

absl::StatusOr<v1::Model> ServedModel(v1::Inference::StubInterface& stub) {
  grpc::ClientContext context;
  SetTimeout(context, kListTimeout);
  v1::ListModelsResponse response;
  RUNAHEAD_RETURN_IF_ERROR(FromGrpcStatus(stub.ListModels(&context, {}, &response)));
  if (response.models().empty()) return absl::UnavailableError("the router serves no model yet");
  return response.models(0);
}

std::string ErrorText(const absl::Status& status) {
  std::string text = absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message());
  // Our router's messages begin with the field; others' may not.
  if (const auto field = BlamedField(status); field.has_value() && !absl::StartsWith(status.message(), *field)) {
    absl::StrAppend(&text, " (field ", *field, ")");
  }
  if (const auto delay = RetryAfter(status)) absl::StrAppend(&text, "; try again in ", absl::FormatDuration(*delay));
  return text;
}

int Refused(const std::string& command, const absl::Status& status) {
  std::cerr << "runahead " << command << ": " << ErrorText(status) << "\n";
  return kFailed;
}

int WrongUsage(const std::string& command, const absl::Status& status) {
  std::cerr << "runahead " << command << ": " << status.message() << "\nRun with --help for all options.\n";
  return kWrongUsage;
}

int NotConnected(const std::string& command, const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? WrongUsage(command, status) : Refused(command, status);
}

int NotRead(const std::string& command, const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? Refused(command, status) : WrongUsage(command, status);
}

}  // namespace runahead
