// The KeptKv service of kept.proto: what the KV store keeps of sequences that ended, to look at and to forget.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "runahead/v1/kept.grpc.pb.h"
#include "worker/kv/store.h"

namespace runahead {

// Thread-safe; no call blocks for longer than the store's lock. The store outlives the service, and the service
// outlives the server.
class KeptKvService final : public v1::KeptKv::CallbackService {
 public:
  // `forgotten` is called after each Forget, on any thread; must not block. For gauges.
  KeptKvService(KvStore& store, std::function<void()> forgotten) : store_(store), forgotten_(std::move(forgotten)) {}

  grpc::ServerUnaryReactor* Look(grpc::CallbackServerContext* context, const v1::LookKeptRequest* request,
                                 v1::KeptMemory* reply) override;
  grpc::ServerUnaryReactor* Forget(grpc::CallbackServerContext* context, const v1::ForgetKeptRequest* request,
                                   v1::ForgetKeptReply* reply) override;

 private:
  absl::Status CheckEpoch(uint32_t epoch) const;

  KvStore& store_;
  const std::function<void()> forgotten_;
};

}  // namespace runahead
