// The public service Cache: what decode workers keep of sequences that ended, to see and to empty.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runahead/v1/cache.grpc.pb.h"
#include "server/base/drain_gate.h"
#include "server/router/holding_reactor.h"
#include "server/router/key_door.h"
#include "server/router/session.h"
#include "server/rpc/message_service.h"
#include "server/task/task.h"

namespace runahead {

// Thread-safe; no call blocks. Workers are asked side by side. One that says nothing for two seconds is named in the
// answer, which waits for it no longer.
class CacheService final : public MessageService<v1::Cache> {
 public:
  // As InferenceService's.
  CacheService(const RouterParts& parts, CallDoor door = {}, KeyDoor* keys = nullptr);

  // Where calls get their pass; before there is one they are UNAVAILABLE. `gate` must outlive all calls.
  void SetGate(DrainGate* gate) { gate_ = gate; }

  grpc::ServerUnaryReactor* Show(grpc::CallbackServerContext* context, const v1::ShowCacheRequest* request,
                                 v1::ShowCacheResponse* response) override;
  grpc::ServerUnaryReactor* Empty(grpc::CallbackServerContext* context, const v1::EmptyCacheRequest* request,
                                  v1::EmptyCacheResponse* response) override;

 private:
  // One call to this service, and those to workers that it waits for.
  struct Round;

  // UNAUTHENTICATED as KeyDoor::AccountOf; UNAVAILABLE while the router starts or ends.
  absl::StatusOr<std::shared_ptr<Round>> Begin(const grpc::ServerContextBase& context);
  // One less is awaited; the last one ends the call.
  static void Answered(Round& round);
  // Adds a part to `workers` for each decode worker that is listed, and starts begin(worker, part) for each that is
  // there.
  template <typename Part, typename BeginAsking>
  void AskWorkers(Round& round, google::protobuf::RepeatedPtrField<Part>& workers, const BeginAsking& begin);
  Task<> Look(std::shared_ptr<Round> round, std::shared_ptr<const LiveWorker> worker, v1::CacheOfWorker* shown);
  Task<> Forget(std::shared_ptr<Round> round, std::shared_ptr<const LiveWorker> worker, v1::EmptiedWorker* emptied);

  const RouterParts& parts_;
  const KeyDoor* const keys_;
  std::atomic<DrainGate*> gate_ = nullptr;
};

}  // namespace runahead
