// The health service, grpc.health.v1, of a server all of whose services begin and end to serve together.
#pragma once

#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_set.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "kernels/base/mutex.h"
#include "server/rpc/message_service.h"

namespace runahead {

// Begins with NOT_SERVING. Thread-safe; outlives the server that offers it.
class HealthService final : public MessageService<grpc::health::v1::Health> {
 public:
  // Watch streams that are open at once. They stay for as long as their clients like; where there are more, those whose
  // connections have most end.
  static constexpr size_t kMostWatches = 1024;

  // What it knows by name, beside the empty name, which is the server's.
  HealthService(const CallDoor& door, const std::vector<std::string>& names);

  void SetServing(bool serving) RUNAHEAD_EXCLUDES(mu_);
  bool serving() const RUNAHEAD_EXCLUDES(mu_);
  // NOT_SERVING for good.
  void Drain() RUNAHEAD_EXCLUDES(mu_);

  // NOT_FOUND for a name that it does not know.
  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override RUNAHEAD_EXCLUDES(mu_);
  // Says what is now, and each change. A name that it does not know is SERVICE_UNKNOWN, and stays so.
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context, const grpc::health::v1::HealthCheckRequest* request) override
      RUNAHEAD_EXCLUDES(mu_);

 private:
  using Response = grpc::health::v1::HealthCheckResponse;
  struct Watcher;

  Response::ServingStatus StatusOf(const std::string& name) const RUNAHEAD_REQUIRES(mu_);
  bool MakeRoomFor(const std::string& peer) RUNAHEAD_REQUIRES(mu_);
  void Remove(Watcher& watcher) RUNAHEAD_REQUIRES(mu_);
  void TellAll() RUNAHEAD_REQUIRES(mu_);
  // How it is now, unless that is what was said last.
  void Tell(Watcher& watcher) RUNAHEAD_REQUIRES(mu_);
  void End(Watcher& watcher, const absl::Status& why) RUNAHEAD_REQUIRES(mu_);

  const absl::flat_hash_set<std::string> names_;
  mutable Mutex mu_;
  bool serving_ RUNAHEAD_GUARDED_BY(mu_) = false;
  bool drained_ RUNAHEAD_GUARDED_BY(mu_) = false;
  absl::btree_map<std::string, std::vector<Watcher*>> watchers_
      RUNAHEAD_GUARDED_BY(mu_);  // by peer; the newest is last
  size_t watches_ RUNAHEAD_GUARDED_BY(mu_) = 0;
};

}  // namespace runahead
