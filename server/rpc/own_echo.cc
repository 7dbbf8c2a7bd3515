#include "server/rpc/own_echo.h"

#include <grpcpp/create_channel_posix.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/status_macros.h"
#include "server/base/logging.h"

namespace runahead {
namespace {

// An answer later than this is a reason to say that the process is behind.
constexpr absl::Duration kLate = absl::Seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<OwnEcho>> OwnEcho::Create() {
  std::array<int, 2> ends;
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0) {
    return absl::UnavailableError(absl::StrCat("no sockets to hear oneself over: ", std::strerror(errno)));
  }
  return std::unique_ptr<OwnEcho>(new OwnEcho(ends[0], ends[1]));
}

OwnEcho::OwnEcho(int client, int server) {
  grpc::ServerBuilder builder;
  builder.RegisterCallbackGenericService(&service_);
  server_ = builder.BuildAndStart();
  RUNAHEAD_CHECK(server_ != nullptr);
  grpc::AddInsecureChannelFromFd(server_.get(), server);
  stub_ = std::make_unique<grpc::GenericStub>(grpc::CreateInsecureChannelFromFd("own-echo", client));
}

OwnEcho::~OwnEcho() {
  {
    MutexLock lock(mu_);
    while (call_) ended_.Wait(mu_);
  }
  stub_.reset();
  server_->Shutdown();
  server_->Wait();
}

absl::Time OwnEcho::Until(absl::Time now) {
  Call* begins = nullptr;
  absl::Time until;
  {
    MutexLock lock(mu_);
    until = std::min(until_, now);
    if (!call_) {
      begins = &call_.emplace();
      begins->asked = now;
      begins->begun = MonotonicNow();
    }
  }
  if (begins != nullptr) {
    stub_->UnaryCall(&begins->context, "/runahead/OwnEcho", {}, &begins->request, &begins->response,
                     [this](const grpc::Status& status) { Answered(status); });
  }
  return until;
}

void OwnEcho::Answered(const grpc::Status& status) {
  absl::Duration took;
  {
    MutexLock lock(mu_);
    took = MonotonicNow() - call_->begun;
    // Any other end is not the service's answer, and says nothing.
    if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) until_ = call_->asked;
  }
  if (const auto times = took >= kLate ? late_.Happened() : std::nullopt) {
    LogWarning("hearing", "this process is short of cores, or flooded: what others send it lies unread for ",
               absl::FormatDuration(absl::Trunc(took, absl::Milliseconds(100))), *times > 1 ? " (again)" : "");
  }
  MutexLock lock(mu_);
  call_.reset();
  ended_.NotifyAll();
}

}  // namespace runahead
