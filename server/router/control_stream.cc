#include "server/router/control_stream.h"

#include <utility>

#include "server/rpc/status.h"

namespace runahead {

std::shared_ptr<ControlStream> ControlStream::Open(v1::Worker::StubInterface& stub, Callbacks callbacks) {
  std::shared_ptr<ControlStream> stream(new ControlStream(std::move(callbacks)));
  stream->itself_ = stream;
  stub.async()->Control(&stream->context_, stream.get());
  stream->AddHold();  // Write() starts operations outside of reactions
  stream->StartRead(&stream->report_);
  stream->StartCall();
  return stream;
}

void ControlStream::Write(v1::ControlCommand command) {
  MutexLock lock(mu_);
  if (!open_) return;
  queue_.push_back(std::move(command));
  if (queue_.size() == 1) StartWrite(&queue_.front());
}

void ControlStream::OnReadDone(bool ok) {
  if (ok) {
    callbacks_.report(report_);
    StartRead(&report_);
    return;
  }
  {
    MutexLock lock(mu_);
    open_ = false;
  }
  RemoveHold();
}

void ControlStream::OnWriteDone(bool /*ok*/) {
  MutexLock lock(mu_);
  queue_.pop_front();
  if (open_ && !queue_.empty()) StartWrite(&queue_.front());
}

void ControlStream::OnDone(const grpc::Status& status) {
  const absl::Status why = FromGrpcStatus(status);
  const std::function<void(absl::Status)> broken = callbacks_.broken;
  // Not the last reference: see Open. With it would go the context, the channel, and, where that is the process's last
  // one, gRPC's callback queue: it would wait for this very thread, which runs on it, and be freed under it.
  itself_.reset();
  broken(why.ok() ? absl::UnavailableError("the worker closed the control stream") : why);
}

}  // namespace runahead
