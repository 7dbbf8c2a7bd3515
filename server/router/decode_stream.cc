#include "server/router/decode_stream.h"

#include <utility>

#include "server/rpc/channel.h"
#include "server/rpc/status.h"

namespace runahead {

DecodeStream::DecodeStream(v1::Decode::StubInterface& stub, v1::DecodeRequest request, absl::Duration timeout)
    : request_(std::move(request)) {
  SetTimeout(context_, timeout);
  stub.async()->Generate(&context_, &request_, this);
  AddHold();  // until Read has seen the end
  StartCall();
}

Task<bool> DecodeStream::Read(v1::DecodeReply& reply, Clock& clock, absl::Time until) {
  if (ended_) co_return false;
  StartRead(&reply);
  std::optional<bool> read;
  while (!(read = TakeRead())) {
    const bool late = clock.Now() >= until;
    if (late) Cancel();  // which brings the end
    if (late || until == absl::InfiniteFuture()) {
      co_await wake_.Wait();
    } else {
      co_await wake_.Until(clock, until);
    }
  }
  if (!*read) {
    ended_ = true;
    RemoveHold();
  }
  co_return *read;
}

Task<absl::Status> DecodeStream::Finish() {
  std::optional<grpc::Status> ended;
  while (!(ended = status())) co_await wake_.Wait();
  co_return FromGrpcStatus(*ended);
}

void DecodeStream::OnReadDone(bool ok) {
  MutexLock lock(mu_);
  read_ = ok;
  wake_.Notify();
}

void DecodeStream::OnDone(const grpc::Status& status) {
  MutexLock lock(mu_);
  status_ = status;
  wake_.Notify();
}

std::optional<bool> DecodeStream::TakeRead() {
  MutexLock lock(mu_);
  return std::exchange(read_, std::nullopt);
}

std::optional<grpc::Status> DecodeStream::status() {
  MutexLock lock(mu_);
  return status_;
}

}  // namespace runahead
