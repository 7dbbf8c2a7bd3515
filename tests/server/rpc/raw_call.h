// A unary call whose bytes a test writes itself: garbage, and services without a stub.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "kernels/base/mutex.h"
#include "server/rpc/channel.h"

namespace runahead::testing {

inline grpc::Status CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                            const std::string& request, std::string* response,
                            grpc_compression_algorithm folded_by = GRPC_COMPRESS_NONE) {
  grpc::ClientContext context;
  context.set_compression_algorithm(folded_by);
  SetTimeout(context, absl::Seconds(30));
  const grpc::Slice slice(request);
  const grpc::ByteBuffer out(&slice, 1);
  grpc::ByteBuffer in;
  Mutex mu;
  CondVar changed;
  std::optional<grpc::Status> status;
  grpc::GenericStub(channel).UnaryCall(&context, method, {}, &out, &in, [&](grpc::Status s) {
    MutexLock lock(mu);
    status = std::move(s);
    changed.NotifyAll();
  });
  MutexLock lock(mu);
  while (!status.has_value()) changed.Wait(mu);
  grpc::Slice bytes;
  if (status->ok() && in.DumpToSingleSlice(&bytes).ok()) response->assign(bytes.begin(), bytes.end());
  return *status;
}

}  // namespace runahead::testing
