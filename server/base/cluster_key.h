// The secret that the processes of one cluster share, and what proves that one knows it. It keeps out who reaches our
// ports but sees no traffic; it hides nothing that travels.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace runahead {

// A value: copies share nothing. Never printed: no message of ours holds any of it.
class ClusterKey {
 public:
  // No key: proofs are computed all the same, and anybody could compute them.
  ClusterKey() = default;
  // `secret` as it is, of any length.
  explicit ClusterKey(std::string secret) : secret_(std::move(secret)) {}

  // Reads it from a file, without the white space around it; no key where `path` is empty. Errors begin with
  // "cluster_key: ", name the file and say what to do: NOT_FOUND and the like where it cannot be read,
  // PERMISSION_DENIED where everybody on this host may read or write it, INVALID_ARGUMENT where it is too short (16
  // bytes) or too long to be one.
  static absl::StatusOr<ClusterKey> Read(const std::string& path);

  bool given() const { return !secret_.empty(); }

  // HMAC-SHA256 of `text`: 32 bytes.
  std::string Proof(absl::string_view text) const;

 private:
  std::string secret_;
};

// Whether `claimed` is `right`, in a time that does not say where they differ.
bool SameProof(absl::string_view claimed, absl::string_view right);

}  // namespace runahead
