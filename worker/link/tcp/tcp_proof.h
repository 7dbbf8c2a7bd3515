// How the two ends of a TCP connection prove that they have the cluster's key before anything that they say counts.
//
//   caller                                answerer
//   hello (nonce)          ->
//                          <-             hello (nonce), proof
//   proof, then frames     ->             frames only now
//
// A proof covers both hellos, and so both nonces, both ids and who called: it is good for this one connection.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "server/base/cluster_key.h"

namespace runahead {

inline constexpr size_t kTcpProofBytes = 32;

// Of the caller or of the answerer; the hellos as they were on the wire.
inline std::string TcpProof(const ClusterKey& key, bool of_caller, const std::string& callers_hello,
                            const std::string& answerers_hello) {
  return key.Proof(absl::StrCat("runahead link ", of_caller ? "caller" : "answer", callers_hello, answerers_hello));
}

}  // namespace runahead
