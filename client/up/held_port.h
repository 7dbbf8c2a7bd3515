// Keeps a port for a process that is to listen there, and to listen there again after its death.
#pragma once

#include <string>

namespace runahead {

// While it lives the system gives the port to nobody who asks for any free one; who asks for this one may listen there,
// with SO_REUSEADDR. Holds nothing where `address` (a numeric host:port) is no such address, or the port is taken: then
// whoever is to have it says so. Not to be moved; for one thread.
class HeldPort {
 public:
  explicit HeldPort(const std::string& address);
  ~HeldPort();

  // What it was given, with the port that is held: port 0 takes a free one.
  const std::string& address() const { return address_; }

  HeldPort(const HeldPort&) = delete;
  HeldPort& operator=(const HeldPort&) = delete;

 private:
  std::string address_;
  int socket_ = -1;
};

}  // namespace runahead
