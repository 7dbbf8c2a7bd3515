#include "server/rpc/open_connections.h"

#include <sys/stat.h>

#include <utility>

namespace runahead {
namespace {

// 0 where it is no socket.
ino_t InodeOf(int socket) {
  struct stat found;
  return fstat(socket, &found) == 0 && S_ISSOCK(found.st_mode) ? found.st_ino : 0;
}

}  // namespace

void OpenConnections::Add(int socket, const std::string& address) {
  Connection& connection = open_[socket];
  // The connection that had this descriptor before has ended since the last sweep.
  if (connection.inode != 0) Forget(connection.address);
  connection = {InodeOf(socket), address};
  ++of_[address];
}

void OpenConnections::Sweep() {
  for (auto each = open_.begin(); each != open_.end();) {
    const auto here = each++;
    if (InodeOf(here->first) == here->second.inode) continue;
    Forget(here->second.address);
    open_.erase(here);
  }
}

int OpenConnections::CountOf(const std::string& address) const {
  const auto found = of_.find(address);
  return found == of_.end() ? 0 : found->second;
}

void OpenConnections::Forget(const std::string& address) {
  const auto found = of_.find(address);
  if (--found->second == 0) of_.erase(found);
}

}  // namespace runahead
