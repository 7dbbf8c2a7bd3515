// Judges who calls the public service, by the API key in a call's metadata: before its message is read.
#pragma once

#include <grpcpp/server_context.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runahead/v1/inference.pb.h"
#include "server/base/clock.h"
#include "server/base/rare_line.h"
#include "server/router/key_account.h"
#include "server/router/key_metrics.h"
#include "server/router/key_ring.h"
#include "server/rpc/message_call.h"

namespace runahead {

// Thread-safe. Nothing that it says, logs or counts has any of a key, good or not.
class KeyDoor {
 public:
  // All outlive it.
  KeyDoor(const KeyRing& ring, KeyMetrics& metrics, Clock& clock) : ring_(ring), metrics_(metrics), clock_(clock) {}

  // UNAUTHENTICATED without a key that is good now, in the same words whatever stands there in its place;
  // RESOURCE_EXHAUSTED, with when to try again, where more calls came with it than may. Takes note of the call: once
  // for each.
  absl::Status Admit(const grpc::ServerContextBase& context);

  // The same without the note, for a call that calls Admit in its own name later.
  absl::Status Recognize(const grpc::ServerContextBase& context);

  // Whose key a call has. UNAUTHENTICATED as above: the file may have changed since it was admitted.
  absl::StatusOr<std::shared_ptr<KeyAccount>> AccountOf(const grpc::ServerContextBase& context) const;

 private:
  // Judges, and counts a fault.
  absl::StatusOr<std::shared_ptr<KeyAccount>> Find(const grpc::ServerContextBase& context);
  absl::StatusOr<std::shared_ptr<KeyAccount>> Judge(const grpc::ServerContextBase& context, KeyFault& fault) const;

  const KeyRing& ring_;
  KeyMetrics& metrics_;
  Clock& clock_;
  RareLine stranger_{absl::Seconds(10)};
};

// `door` for callers with a key alone, where there are keys: `keys`, which outlive it, may be null.
CallDoor WithKeys(CallDoor door, KeyDoor* keys);

// Whose a request is.
struct RequestOwner {
  std::string tenant;  // empty: nobody's by name
  KeyGrant grant;      // of the key that it came with, where there are keys
};

// By the key, or without `door` by what the metadata says. Errors: INVALID_ARGUMENT for a name that is none, and
// KeyDoor's and KeyAccount's, of which this takes a request's place. A request that does not say its priority may get
// one.
absl::StatusOr<RequestOwner> OwnerOf(const grpc::ServerContextBase& context, const KeyDoor* door,
                                     v1::GenerateRequest& request);

}  // namespace runahead
