#include "server/base/metrics_server.h"

#include <httplib.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>

#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"
#include "server/base/address.h"

namespace runahead {

struct MetricsServer::Impl {
#include "server/base/listen_error.h"
  httplib::Server server;
  std::atomic<bool> ended = false;
  std::thread thread;
};

namespace {

void Configure(httplib::Server& server, const MetricRegistry& registry) {
  server.new_task_queue = [] { return new httplib::ThreadPool(2); };  // a scrape every few seconds
  server.set_keep_alive_max_count(1);                                 // so that stopping waits for no idle client
  server.set_read_timeout(std::chrono::seconds(1));
  server.set_write_timeout(std::chrono::seconds(5));
  server.set_payload_max_length(1024);
  // Without httplib's SO_REUSEPORT, with which two processes would share a port and each get half of the scrapes.
  server.set_socket_options([](int socket) {
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
  Configure(impl->server, registry);
  if (address.port == 0) {
    const int port = impl->server.bind_to_any_port(address.host);
    if (port < 0) return ListenError("metrics_listen", address);
    address.port = port;
  } else if (!impl->server.bind_to_port(address.host, address.port)) {
    return ListenError("metrics_listen", address);
  }
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
