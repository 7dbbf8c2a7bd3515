// A worker's side of membership: proves to whoever asks that this process has the cluster's key, and judges who calls.
#pragma once

#include <grpcpp/server_context.h>

#include <bitset>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/member.grpc.pb.h"
#include "server/base/clock.h"
#include "server/base/cluster_key.h"
#include "server/rpc/member_proof.h"
#include "server/rpc/message_service.h"
#include "server/rpc/open_door.h"

namespace runahead {

// Thread-safe; outlives the server that offers it. One for all services of a port. Holds nothing for callers that have
// not proved themselves: their messages come through the port's OpenDoor.
class MemberDoor final : public MessageService<v1::Membership> {
 public:
  // A session's first call comes within this time after its nonce; the most sessions that are remembered (then those
  // that called longest ago make room, and begin anew); how far a call may overtake another.
  static constexpr absl::Duration kFirstCall = absl::Minutes(1);
  static constexpr size_t kMostSessions = 4096;
  static constexpr size_t kWindow = 1024;

  // `open_door` and `clock` outlive this.
  MemberDoor(ClusterKey key, OpenDoor& open_door, Clock& clock = RealClock());

  grpc::ServerUnaryReactor* Prove(grpc::CallbackServerContext* context, const v1::ProveRequest* request,
                                  v1::ProveReply* reply) override;

  // Of a call with this metadata over this connection: UNAUTHENTICATED, saying what to do, unless the caller has the
  // same key, proved so on this connection, and makes this call for the first time; or has no key where we have none.
  // Takes note of the call: once for each.
  absl::Status Check(const grpc::ServerContextBase& context) RUNAHEAD_EXCLUDES(mu_);

 private:
  // Which calls of a session were made: the newest, and those of the last kWindow.
  struct Session {
    uint64_t next = 0;
    std::bitset<kWindow> seen;
    absl::Time called_at;
  };

  absl::Status CheckProof(absl::string_view claimed, absl::string_view peer) RUNAHEAD_EXCLUDES(mu_);
  // False where the call was made before, or may have been.
  bool TakeNote(const CallProof& proof) RUNAHEAD_EXCLUDES(mu_);
  // Null where there is no room.
  Session* Find(const CallProof& proof, absl::Time now) RUNAHEAD_REQUIRES(mu_);
  void MakeRoom(absl::Time now) RUNAHEAD_REQUIRES(mu_);

  const ClusterKey key_;
  Clock& clock_;
  const NonceMaker nonces_;
  Mutex mu_;
  absl::flat_hash_map<std::string, Session> sessions_ RUNAHEAD_GUARDED_BY(mu_);  // by the worker's nonce
};

}  // namespace runahead
