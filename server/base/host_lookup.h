// The addresses of a host, by its name, for who cannot wait for a name server that says nothing.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace runahead {

// IP addresses of `host`, a name or an address, in the order in which they are to be tried; at least one. Blocks for as
// long as the system's resolver takes, which nothing ends. NOT_FOUND says why there are none.
absl::StatusOr<std::vector<std::string>> SystemAddresses(const std::string& host);

// Of one host. Thread-safe.
class HostLookup {
 public:
  using Resolver = std::function<absl::StatusOr<std::vector<std::string>>(const std::string& host)>;

  // `resolver` is called on a thread of its own, which is left where it does not come back: until the process ends it
  // may run behind this object's end, so it uses nothing that ends before.
  explicit HostLookup(std::string host, Resolver resolver = SystemAddresses);
  ~HostLookup();
  HostLookup(const HostLookup&) = delete;
  HostLookup& operator=(const HostLookup&) = delete;

  // Asks anew, or waits for the question that is still open, of which there is one at a time. DEADLINE_EXCEEDED: no
  // answer within `patience`. CANCELLED: Cut. RESOURCE_EXHAUSTED: the system has no thread for it.
  absl::StatusOr<std::vector<std::string>> Find(absl::Duration patience);

  // Ends what waits, and all that comes.
  void Cut();

 private:
  struct Question;
  const std::shared_ptr<Question> question_;
};

}  // namespace runahead
