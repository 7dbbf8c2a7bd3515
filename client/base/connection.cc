#include "client/base/connection.h"

#include <algorithm>
#include <iostream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/base/api_key.h"
#include "client/base/command.h"
#include "client/base/parse.h"
#include "client/base/progress.h"
#include "kernels/base/status_macros.h"
#include "server/base/address.h"
#include "server/rpc/channel.h"
#include "server/rpc/status.h"
#include "server/rpc/tls_words.h"

namespace runahead {
namespace {

// Enough for a router that is just being started again.
constexpr absl::Duration kConnectTimeout = absl::Seconds(5);
constexpr absl::Duration kListTimeout = absl::Seconds(30);
// A channel that has failed to connect says so at once.
constexpr absl::Duration kAskTimeout = absl::Seconds(2);

// Why nobody could be connected to, where TLS has to do with it; OK where it does not. Only a call says it.
absl::Status WhyNotConnected(const std::shared_ptr<grpc::Channel>& channel, bool speaks_tls) {
  if (channel->GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_TRANSIENT_FAILURE) return absl::OkStatus();
  grpc::ClientContext context;
  SetTimeout(context, kAskTimeout);
  v1::ListModelsResponse response;
  const absl::Status status = FromGrpcStatus(v1::Inference::NewStub(channel)->ListModels(&context, {}, &response));
  const absl::Status explained = WithTlsFlags(status, speaks_tls);
  return explained == status ? absl::OkStatus() : explained;
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> ConnectedChannel(const RouterFlags& router, absl::Duration timeout) {
  const std::string& address = router.address;
  RUNAHEAD_RETURN_IF_ERROR(InFlag("--router", ParseHostPort(address).status()));
  RUNAHEAD_RETURN_IF_ERROR(CheckApiKey(router.api_key));
  RUNAHEAD_ASSIGN_OR_RETURN(const ChannelTls tls, router.tls.Read());
  const auto channel = MakeChannel(address, kPublicKeepAlive, BringApiKey(router.api_key), tls);
  const Progress progress(absl::StrCat("Waiting for ", address));
  const absl::Status ready = WaitReady(*channel, address, std::min(timeout, kConnectTimeout));
  if (!ready.ok()) RUNAHEAD_RETURN_IF_ERROR(WhyNotConnected(channel, router.tls.given()));
  if (!ready.ok() && timeout < kConnectTimeout) {
    return absl::DeadlineExceededError(absl::StrCat("nothing answered at ", address, " within the ",
                                                    absl::FormatDuration(timeout),
                                                    " of --timeout; is a router running there?"));
  }
  RUNAHEAD_RETURN_IF_ERROR(ready);
  return channel;
}

}  // namespace

absl::StatusOr<std::unique_ptr<v1::Inference::StubInterface>> Connect(const RouterFlags& router,
                                                                      absl::Duration timeout) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, ConnectedChannel(router, timeout));
  return v1::Inference::NewStub(channel);
}

absl::StatusOr<std::unique_ptr<v1::Cache::StubInterface>> ConnectToCache(const RouterFlags& router) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                            ConnectedChannel(router, absl::InfiniteDuration()));
  return v1::Cache::NewStub(channel);
}

absl::Status WithTlsFlags(const absl::Status& status, bool speaks_tls) {
  return WithTlsWords(status, speaks_tls, {"--tls or --tls-ca", "--tls-ca", "--tls-cert", "--tls-server-name"});
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
