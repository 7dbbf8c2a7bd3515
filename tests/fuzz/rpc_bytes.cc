// What a peer puts beside its messages: proofs in metadata, and the details of a status. The first byte says which.
#include "server/rpc/member_proof.h"
#include "server/rpc/status.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/quiet_protobuf.h"

namespace runahead {
namespace {

void CheckProof(std::string_view bytes) {
  const absl::string_view packed(bytes.data(), bytes.size());
  CallProof proof;
  if (!UnpackCallProof(packed, proof)) return;
  RUNAHEAD_CHECK(PackCallProof(proof) == packed);
  RUNAHEAD_CHECK(proof.callers.size() == kCallersNonceBytes && proof.workers.size() == kWorkersNonceBytes);
  // Nobody guesses what this process made, or who has the key.
  static const NonceMaker nonces;
  RUNAHEAD_CHECK(!nonces.IsOurs(proof.workers, proof.callers, "peer"));
  (void)NonceMaker::MadeAt(proof.workers);
  static const ClusterKey key(RandomNonce(32));
  RUNAHEAD_CHECK(!SameProof(proof.proof, ProofOfCall(SessionKey(key, proof.callers, proof.workers), proof.number)));
  const std::string made = nonces.Make(proof.callers, "peer", absl::UnixEpoch());
  RUNAHEAD_CHECK(nonces.IsOurs(made, proof.callers, "peer") && !nonces.IsOurs(made, proof.callers, "another"));
}

void CheckDetails(std::string_view bytes) {
  const grpc::Status came(grpc::StatusCode::UNAVAILABLE, std::string(bytes.substr(0, 20)), std::string(bytes));
  const absl::Status status = FromGrpcStatus(came);
  RUNAHEAD_CHECK(absl::IsUnavailable(status));
  if (const auto delay = RetryAfter(status)) RUNAHEAD_CHECK(*delay >= absl::ZeroDuration());
  (void)BlamedField(status);
  const grpc::Status back = ToGrpcStatus(status);
  RUNAHEAD_CHECK(back.error_code() == came.error_code() && back.error_message().size() <= kMaxStatusMessageBytes);
  RUNAHEAD_CHECK(BlamedField(FromGrpcStatus(back)) == BlamedField(status));
}

}  // namespace

void Fuzz(std::string_view input) {
  fuzz::QuietProtobuf();
  if (input.empty()) return;
  return input[0] == 'P' ? CheckProof(input.substr(1)) : CheckDetails(input.substr(1));
}

}  // namespace runahead
