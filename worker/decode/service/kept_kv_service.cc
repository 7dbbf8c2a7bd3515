#include "worker/decode/service/kept_kv_service.h"

#include <optional>

#include "absl/strings/string_view.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

grpc::ServerUnaryReactor* End(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace

// As Reserve's: a router that was lost knows nothing of what is here now.
absl::Status KeptKvService::CheckEpoch(uint32_t epoch) const {
  if (epoch == store_.epoch()) return absl::OkStatus();
  return absl::UnavailableError("epoch: this worker lost its router meanwhile; ask for its capabilities");
}

grpc::ServerUnaryReactor* KeptKvService::Look(grpc::CallbackServerContext* context, const v1::LookKeptRequest* request,
                                              v1::KeptMemory* reply) {
  if (const absl::Status status = CheckEpoch(request->epoch()); !status.ok()) return End(context, status);
  const KvStore::Stats stats = store_.stats();
  reply->set_kept_bytes(stats.kept_bytes);
  reply->set_used_bytes(stats.used_bytes);
  reply->set_capacity_bytes(stats.capacity_bytes);
  reply->set_evicted_bytes(stats.evicted_bytes);
  return End(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* KeptKvService::Forget(grpc::CallbackServerContext* context,
                                                const v1::ForgetKeptRequest* request, v1::ForgetKeptReply* reply) {
  if (const absl::Status status = CheckEpoch(request->epoch()); !status.ok()) return End(context, status);
  std::optional<absl::string_view> salt;
  if (request->has_salt()) salt = request->salt();
  reply->set_freed_bytes(store_.Forget(salt));
  if (forgotten_) forgotten_();
  return End(context, absl::OkStatus());
}

}  // namespace runahead
