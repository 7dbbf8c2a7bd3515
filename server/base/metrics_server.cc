#include "server/base/metrics_server.h"

#include <httplib.h>
#include <sys/socket.h>

#include <atomic>
#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"
#include "server/base/address.h"
#include "server/base/listen_error.h"

namespace runahead {

struct MetricsServer::Impl {
  httplib::Server server;
  int socket = -1;  // that the server listens on
  std::atomic<bool> ended = false;
  std::thread thread;
};

namespace {

// Connections that are served at once; what comes above it waits for at most kIdleTimeout a turn.
constexpr size_t kMaxConnections = 128;
constexpr time_t kIdleTimeout = 1;  // seconds; a scraper sends its request with its connection

// A thread for each open connection, started when first needed: one that sends nothing keeps no other waiting.
// httplib's own pool has a fixed number, and an idle connection takes one of them out of service.
class ConnectionThreads final : public httplib::TaskQueue {
 public:
  void enqueue(std::function<void()> serve) override RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    waiting_.push_back(std::move(serve));
    ++open_;
    if (open_ > threads_.size() && threads_.size() < kMaxConnections) threads_.emplace_back([this] { Run(); });
    changed_.NotifyOne();
  }

  void shutdown() override RUNAHEAD_EXCLUDES(mu_) {
    std::vector<std::thread> threads;
    {
      MutexLock lock(mu_);
      stop_ = true;
      changed_.NotifyAll();
      threads.swap(threads_);
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  void Run() RUNAHEAD_EXCLUDES(mu_) {
    mu_.Lock();
    while (true) {
      while (waiting_.empty() && !stop_) changed_.Wait(mu_);
      if (waiting_.empty()) break;
      const std::function<void()> serve = std::move(waiting_.front());
      waiting_.pop_front();
      mu_.Unlock();
      serve();
      mu_.Lock();
      --open_;
    }
    mu_.Unlock();
  }

  Mutex mu_;
  CondVar changed_;
  std::deque<std::function<void()>> waiting_ RUNAHEAD_GUARDED_BY(mu_);
  std::vector<std::thread> threads_ RUNAHEAD_GUARDED_BY(mu_);
  size_t open_ RUNAHEAD_GUARDED_BY(mu_) = 0;  // served or waiting
  bool stop_ RUNAHEAD_GUARDED_BY(mu_) = false;
};

void Configure(httplib::Server& server, int& listening, const MetricRegistry& registry) {
  server.new_task_queue = [] { return new ConnectionThreads; };
  server.set_keep_alive_max_count(1);  // so that stopping waits for no idle client
  server.set_keep_alive_timeout(kIdleTimeout);
  server.set_read_timeout(kIdleTimeout);
  server.set_write_timeout(std::chrono::seconds(5));
  server.set_payload_max_length(1024);
  // Without httplib's SO_REUSEPORT, with which two processes would share a port and each get half of the scrapes.
  server.set_socket_options([&listening](int socket) {
    listening = socket;
    const int on = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  });
  server.Get("/metrics", [&registry](const httplib::Request&, httplib::Response& response) {
    response.set_content(registry.Serialize(), "text/plain; version=0.0.4; charset=utf-8");
  });
  server.Get("/healthz",
             [](const httplib::Request&, httplib::Response& response) { response.set_content("ok\n", "text/plain"); });
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& listen,
                                                                    const MetricRegistry& registry) {
  RUNAHEAD_ASSIGN_OR_RETURN(HostPort address, ParseHostPort(listen));
  auto impl = std::make_unique<Impl>();
  Configure(impl->server, impl->socket, registry);
  if (address.port == 0) {
    const int port = impl->server.bind_to_any_port(address.host);
    if (port < 0) return ListenError("metrics_listen", address);
    address.port = port;
  } else if (!impl->server.bind_to_port(address.host, address.port)) {
    return ListenError("metrics_listen", address);
  }
  // httplib lets 5 connections wait to be accepted; others would try again after a second.
  ::listen(impl->socket, SOMAXCONN);
  impl->thread = std::thread([impl = impl.get()] {
    impl->server.listen_after_bind();
    impl->ended = true;
  });
  // httplib ignores a stop() before its loop runs, so nobody may hold the server until then.
  while (!impl->server.is_running() && !impl->ended) std::this_thread::yield();
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(impl), FormatHostPort(address)));
}

MetricsServer::MetricsServer(std::unique_ptr<Impl> impl, std::string address)
    : impl_(std::move(impl)), address_(std::move(address)) {}

MetricsServer::~MetricsServer() {
  impl_->server.stop();
  impl_->thread.join();
}

}  // namespace runahead
