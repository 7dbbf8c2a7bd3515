#include "worker/link/ucx/ucx_accept.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "kernels/base/mutex.h"
#include "server/base/descriptor.h"
#include "server/base/descriptor_limit.h"

namespace runahead {
namespace {

class AcceptGuard {
 public:
  // As accept().
  int Accept(int listener, sockaddr* address, socklen_t* length) RUNAHEAD_EXCLUDES(mu_) {
    Descriptor connection(accept4(listener, address, length, 0));
    if (!connection.valid() && (errno == EMFILE || errno == ENFILE)) {
      TurnOneAway(listener);
    } else if (!connection.valid() || !IsAmongTheLast(connection.get(), KeptDescriptors() / 2)) {
      return connection.Release();
    }
    connection.Close();
    errno = EAGAIN;
    return -1;
  }

  void KeepSpare() RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    OpenSpare();
  }

 private:
  // It would else be offered again and again.
  void TurnOneAway(int listener) RUNAHEAD_EXCLUDES(mu_) {
    pollfd polled{listener, POLLIN, 0};
    if (poll(&polled, 1, 0) <= 0) return;  // not even one has come, and accept() may wait for one
    MutexLock lock(mu_);
    spare_.Close();
    Descriptor(accept4(listener, nullptr, nullptr, 0)).Close();
    OpenSpare();
  }
  void OpenSpare() RUNAHEAD_REQUIRES(mu_) {
    if (!spare_.valid()) spare_ = Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC));
  }

  Mutex mu_;
  Descriptor spare_ RUNAHEAD_GUARDED_BY(mu_);
};

// Never destroyed: UCX's threads end after ours.
AcceptGuard& Guard() {
  static auto* const guard = new AcceptGuard;
  return *guard;
}

}  // namespace

void GuardUcxAccept() {
  Guard().KeepSpare();
}

}  // namespace runahead

extern "C" int accept(int listener, sockaddr* address, socklen_t* length) {
  return runahead::Guard().Accept(listener, address, length);
}
