// How the two ends of a gRPC connection prove that they have the cluster's key, as the ends of a link do
// (worker/link/tcp/tcp_proof.h): who is called first, and nothing that the caller sends before can be used elsewhere.
//
//   caller                                     worker
//   Prove (nonce)                ->
//                                <-            nonce, proof of the worker
//   a call (its number, proof)   ->            each number once
//
// The worker's nonce holds what only this process can have made, for this caller's nonce and this connection. From both
// nonces and the key follows the session's key, and from that each call's proof. So a proof is good for one call over
// one connection to one process. Who passes on what both ends say while they say it is not kept out: that takes TLS.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/base/cluster_key.h"

namespace runahead {

// Metadata of a call, binary.
inline constexpr char kCallProofKey[] = "runahead-cluster-proof-bin";

inline constexpr size_t kCallersNonceBytes = 16;
inline constexpr size_t kWorkersNonceBytes = 40;
inline constexpr size_t kMemberProofBytes = 32;

// `bytes` random ones; a multiple of 8.
std::string RandomNonce(size_t bytes);

// Where worker's nonces come from.
class NonceMaker {
 public:
  // For a caller's nonce that came over the connection from `peer`, at `now`.
  std::string Make(absl::string_view callers, absl::string_view peer, absl::Time now) const;
  // Whether `workers` was made here, for this caller's nonce and connection.
  bool IsOurs(absl::string_view workers, absl::string_view callers, absl::string_view peer) const;
  // When one of ours was made.
  static absl::Time MadeAt(absl::string_view workers);

 private:
  std::string Seal(absl::string_view unsealed, absl::string_view callers, absl::string_view peer) const;

  const ClusterKey secret_{RandomNonce(32)};  // this process's alone
};

// That the worker has the key; of the nonces' own sizes.
std::string WorkersProof(const ClusterKey& key, absl::string_view callers, absl::string_view workers);

// The key of the calls that follow.
ClusterKey SessionKey(const ClusterKey& key, absl::string_view callers, absl::string_view workers);

// What a call carries.
struct CallProof {
  std::string callers, workers;  // nonces
  uint64_t number = 0;           // of the session's calls, from 0
  std::string proof;
};
std::string ProofOfCall(const ClusterKey& session, uint64_t number);
std::string PackCallProof(const CallProof& proof);
// False where the size is another.
bool UnpackCallProof(absl::string_view packed, CallProof& proof);

}  // namespace runahead
