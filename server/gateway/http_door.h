// A port that speaks HTTP/1.1 (Boost.Beast): thousands of connections on few threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/byte_budget.h"
#include "server/base/connection_metrics.h"
#include "server/gateway/http_exchange.h"

namespace runahead {

struct HttpDoorOptions {
  std::string listen;                              // host:port; port 0 takes a free one
  int threads = 2;                                 // that serve all connections
  int max_connections = 4096;                      // more are closed at once
  int64_t max_body = int64_t{16} << 20;            // bytes
  absl::Duration head_time = absl::Seconds(60);    // in which a request's head is to come, the wait for it included
  absl::Duration body_time = absl::Minutes(2);     // and its body
  absl::Duration write_time = absl::Seconds(60);   // in which a client is to take something of what it was sent
  ByteBudget* memory = nullptr;                    // of all requests' bodies; outlives the door
  const ConnectionMetrics* connections = nullptr;  // outlives the door
};

class HttpDoor {
 public:
  // Called for each request on one of the door's threads; must not wait.
  using Handler = std::function<void(std::shared_ptr<HttpExchange>)>;

  // UNAVAILABLE where the address cannot be had. What is wrong with a request by HTTP alone is answered without the
  // handler: 400, 413, 415, 417, 429 and 431, as the field's error objects.
  static absl::StatusOr<std::unique_ptr<HttpDoor>> Start(const HttpDoorOptions& options, Handler handler);
  ~HttpDoor();  // closes all connections; no handler runs any more

  const std::string& address() const;  // host:port that was really bound

  // Takes no more connections, closes those without a request, and each other one behind its answer. True when none is
  // left; false when `timeout` ran out before.
  bool Drain(absl::Duration timeout);

 private:
  struct Parts;
  explicit HttpDoor(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

}  // namespace runahead
