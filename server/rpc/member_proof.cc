#include "server/rpc/member_proof.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "server/base/random.h"

namespace runahead {
namespace {

constexpr size_t kRandomBytes = 16;
constexpr size_t kUnsealedBytes = kRandomBytes + sizeof(int64_t);  // and when it was made
static_assert(kUnsealedBytes + 16 == kWorkersNonceBytes);
constexpr size_t kCallProofBytes = kCallersNonceBytes + kWorkersNonceBytes + sizeof(uint64_t) + kMemberProofBytes;

template <typename Number>
std::string BytesOf(Number number) {
  return std::string(reinterpret_cast<const char*>(&number), sizeof(number));
}

}  // namespace

std::string RandomNonce(size_t bytes) {
  std::string nonce;
  while (nonce.size() < bytes) nonce += BytesOf(RandomBits64());
  return nonce;
}

std::string NonceMaker::Seal(absl::string_view unsealed, absl::string_view callers, absl::string_view peer) const {
  return secret_.Proof(absl::StrCat(unsealed, callers, peer)).substr(0, kWorkersNonceBytes - kUnsealedBytes);
}

std::string NonceMaker::Make(absl::string_view callers, absl::string_view peer, absl::Time now) const {
  const std::string unsealed = RandomNonce(kRandomBytes) + BytesOf(absl::ToUnixNanos(now));
  return unsealed + Seal(unsealed, callers, peer);
}

bool NonceMaker::IsOurs(absl::string_view workers, absl::string_view callers, absl::string_view peer) const {
  return workers.size() == kWorkersNonceBytes && callers.size() == kCallersNonceBytes &&
         SameProof(workers.substr(kUnsealedBytes), Seal(workers.substr(0, kUnsealedBytes), callers, peer));
}

absl::Time NonceMaker::MadeAt(absl::string_view workers) {
  int64_t nanos = 0;
  std::memcpy(&nanos, workers.data() + kRandomBytes, sizeof(nanos));
  return absl::FromUnixNanos(nanos);
}

std::string WorkersProof(const ClusterKey& key, absl::string_view callers, absl::string_view workers) {
  return key.Proof(absl::StrCat("runahead rpc worker", callers, workers));
}

ClusterKey SessionKey(const ClusterKey& key, absl::string_view callers, absl::string_view workers) {
  return ClusterKey(key.Proof(absl::StrCat("runahead rpc session", callers, workers)));
}

std::string ProofOfCall(const ClusterKey& session, uint64_t number) {
  return session.Proof(absl::StrCat("runahead rpc call", BytesOf(number)));
}

std::string PackCallProof(const CallProof& proof) {
  return absl::StrCat(proof.callers, proof.workers, BytesOf(proof.number), proof.proof);
}

bool UnpackCallProof(absl::string_view packed, CallProof& proof) {
  if (packed.size() != kCallProofBytes) return false;
  const auto take = [&packed](size_t bytes) {
    const absl::string_view taken = packed.substr(0, bytes);
    packed.remove_prefix(bytes);
    return taken;
  };
  proof.callers = std::string(take(kCallersNonceBytes));
  proof.workers = std::string(take(kWorkersNonceBytes));
  std::memcpy(&proof.number, take(sizeof(proof.number)).data(), sizeof(proof.number));
  proof.proof = std::string(take(kMemberProofBytes));
  return true;
}

}  // namespace runahead
