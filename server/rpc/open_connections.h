// Which of the connections that were given to gRPC are still open.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/container/flat_hash_map.h"

namespace runahead {

// gRPC tells nobody when it has closed a connection, and a second descriptor for each, to be told by the system, would
// halve how many there may be. So they are looked at: a descriptor that is no longer the socket that it was (its inode
// is another, or it is closed) is a connection that has ended. That costs a third of a microsecond each. Used by one
// thread.
class OpenConnections {
 public:
  // `socket` is open now; `address` is where it comes from, without its port.
  void Add(int socket, const std::string& address);
  // Forgets those that have ended.
  void Sweep();

  int count() const { return static_cast<int>(open_.size()); }
  int CountOf(const std::string& address) const;

 private:
  struct Connection {
    ino_t inode;
    std::string address;
  };
  void Forget(const std::string& address);

  absl::flat_hash_map<int, Connection> open_;  // by descriptor
  absl::flat_hash_map<std::string, int> of_;   // how many, by address
};

}  // namespace runahead
