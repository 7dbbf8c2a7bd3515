#include "server/gateway/http_door.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"
#include "server/base/address.h"
#include "server/base/descriptor_limit.h"
#include "server/base/listening_sockets.h"
#include "server/base/logging.h"
#include "server/gateway/http_session.h"

namespace runahead {
namespace {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;

// Where the system has no descriptor left, connections wait in its queue.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);

// A client whose host or network is gone says nothing more. Such a connection would stay for as long as an answer has
// nothing to send: the system asks whether the other end is there, and ends the connection some two minutes after it
// was.
constexpr int kKeepAliveIdleSeconds = 60;
constexpr int kKeepAlivePauseSeconds = 15;
constexpr int kKeepAliveProbes = 4;

void WatchPeerHost(int socket) {
  const auto set = [socket](int level, int option, int value) {
    setsockopt(socket, level, option, &value, sizeof value);  // refused: it stays as the system has it
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveIdleSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kKeepAlivePauseSeconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, kKeepAliveProbes);
}

int FamilyOf(int socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  return getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0 ? address.ss_family : AF_INET;
}

}  // namespace

struct HttpDoor::Parts {
  Parts(const HttpDoorOptions& given, Handler given_handler)
      : options(given), handler(std::move(given_handler)), io(options.threads) {}

  void Accept(size_t index) {
    acceptors[index].async_accept(asio::make_strand(io),
                                  [this, index](boost::system::error_code error, Tcp::socket socket) {
                                    if (error == asio::error::operation_aborted || shared.draining) return;
                                    if (error) return AcceptLater(index);
                                    Take(std::move(socket));
                                    Accept(index);
                                  });
  }

  void AcceptLater(size_t index) {
    auto timer = std::make_shared<asio::steady_timer>(io, kAcceptPause);
    timer->async_wait([this, index, timer](boost::system::error_code) {
      if (!shared.draining) Accept(index);
    });
  }

  void Take(Tcp::socket socket) RUNAHEAD_EXCLUDES(mu) {
    const int fd = socket.native_handle();
    boost::system::error_code ignored;
    socket.set_option(Tcp::no_delay(true), ignored);
    WatchPeerHost(fd);
    const bool last = IsAmongTheLast(fd, KeptDescriptors());
    std::shared_ptr<HttpSession> session;
    {
      MutexLock lock(mu);
      if (last || static_cast<int>(sessions.size()) >= options.max_connections) {
        const ConnectionRefusal why = last ? ConnectionRefusal::kDescriptors : ConnectionRefusal::kLimit;
        options.connections->refused(why).Increment();
        return;
      }
      const auto place = sessions.insert(sessions.end(), {next++, {}});
      session = std::make_shared<HttpSession>(std::move(socket), shared, [this, key = place->first] { Ended(key); });
      place->second = session;
      options.connections->open.Set(static_cast<double>(sessions.size()));
    }
    session->Run();
  }

  void Ended(uint64_t key) RUNAHEAD_EXCLUDES(mu) {
    MutexLock lock(mu);
    sessions.erase(key);
    options.connections->open.Set(static_cast<double>(sessions.size()));
    changed.NotifyAll();
  }

  template <typename Function>
  void ForSessions(Function function) RUNAHEAD_EXCLUDES(mu) {
    std::vector<std::shared_ptr<HttpSession>> all;
    {
      MutexLock lock(mu);
      for (const auto& [key, session] : sessions) {
        if (auto held = session.lock()) all.push_back(std::move(held));
      }
    }
    for (const auto& session : all) function(*session);
  }

  const HttpDoorOptions options;
  const Handler handler;
  HttpDoorShared shared{options, handler};
  asio::io_context io;
  // Threads stay while nothing is waited for here: an answer may be made elsewhere, and its connection still be served.
  asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(io);
  std::string address;
  std::vector<Tcp::acceptor> acceptors;
  std::vector<std::thread> threads;
  Mutex mu;
  CondVar changed;
  uint64_t next RUNAHEAD_GUARDED_BY(mu) = 0;
  std::map<uint64_t, std::weak_ptr<HttpSession>> sessions RUNAHEAD_GUARDED_BY(mu);
};

HttpDoor::HttpDoor(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

absl::StatusOr<std::unique_ptr<HttpDoor>> HttpDoor::Start(const HttpDoorOptions& options, Handler handler) {
  RUNAHEAD_ASSIGN_OR_RETURN(const HostPort wanted, ParseHostPort(options.listen));
  RUNAHEAD_ASSIGN_OR_RETURN(ListeningSockets listening, ListenOn("listen", wanted));
  auto parts = std::make_unique<Parts>(options, std::move(handler));
  parts->address = FormatHostPort(listening.address);
  options.connections->limit.Set(options.max_connections);
  for (Descriptor& socket : listening.sockets) {
    const Tcp protocol = FamilyOf(socket.get()) == AF_INET6 ? Tcp::v6() : Tcp::v4();
    parts->acceptors.emplace_back(parts->io, protocol, socket.Release());
  }
  for (size_t i = 0; i < parts->acceptors.size(); ++i) parts->Accept(i);
  for (int i = 0; i < options.threads; ++i) {
    parts->threads.emplace_back([io = &parts->io] { io->run(); });
  }
  return std::unique_ptr<HttpDoor>(new HttpDoor(std::move(parts)));
}

HttpDoor::~HttpDoor() {
  parts_->shared.draining = true;
  parts_->ForSessions([](HttpSession& session) { session.Close(); });
  for (Tcp::acceptor& acceptor : parts_->acceptors) {
    asio::post(parts_->io, [&acceptor] { acceptor.close(); });
  }
  {
    MutexLock lock(parts_->mu);
    while (!parts_->sessions.empty()) parts_->changed.Wait(parts_->mu);
  }
  parts_->io.stop();
  for (std::thread& thread : parts_->threads) thread.join();
}

const std::string& HttpDoor::address() const {
  return parts_->address;
}

bool HttpDoor::Drain(absl::Duration timeout) {
  parts_->shared.draining = true;
  for (Tcp::acceptor& acceptor : parts_->acceptors) {
    asio::post(parts_->io, [&acceptor] { acceptor.close(); });
  }
  parts_->ForSessions([](HttpSession& session) { session.CloseIfIdle(); });
  const absl::Time end = absl::Now() + timeout;
  MutexLock lock(parts_->mu);
  while (!parts_->sessions.empty() && absl::Now() < end) parts_->changed.WaitFor(parts_->mu, end - absl::Now());
  return parts_->sessions.empty();
}

}  // namespace runahead
