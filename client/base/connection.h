// From a router's address to a stub, and from its errors to text.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/base/router_flags.h"
#include "runahead/v1/cache.grpc.pb.h"
#include "runahead/v1/inference.grpc.pb.h"

namespace runahead {

// Waits until the router answers. Calls bring the API key, where there is one. INVALID_ARGUMENT: --router is no
// address, --api-key no key, or a file of the --tls-* flags is no good; UNAVAILABLE: nobody there within 5 s, or why
// TLS with it failed; DEADLINE_EXCEEDED: nor within `timeout`, the user's own limit, where that is shorter.
absl::StatusOr<std::unique_ptr<v1::Inference::StubInterface>> Connect(
    const RouterFlags& router, absl::Duration timeout = absl::InfiniteDuration());

// The same for the router's other service.
absl::StatusOr<std::unique_ptr<v1::Cache::StubInterface>> ConnectToCache(const RouterFlags& router);

// Behind a connection's failure, what to do about TLS where it failed there.
absl::Status WithTlsFlags(const absl::Status& status, bool speaks_tls);

// The model that a router serves. Errors: the service's; UNAVAILABLE: none yet.
absl::StatusOr<v1::Model> ServedModel(v1::Inference::StubInterface& stub);

// "INVALID_ARGUMENT: top_p: ... (field top_p)", "RESOURCE_EXHAUSTED: ...; try again in 2s".
std::string ErrorText(const absl::Status& status);

// Says on stderr why `command` ends and returns the exit code: what the service refused or failed at is 1, what the
// user wrote wrongly is 2.
int Refused(const std::string& command, const absl::Status& status);
int WrongUsage(const std::string& command, const absl::Status& status);
// The same for an error of Connect: an address or a key that is none is the user's fault.
int NotConnected(const std::string& command, const absl::Status& status);
// And of a function that reads a file: a path where nothing can be read is the user's fault, what stands there is not.
int NotRead(const std::string& command, const absl::Status& status);

}  // namespace runahead
