// Many exchanges of HTTP/1.1 at once, with one server and on one thread (Boost.Beast).
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/base/address.h"

namespace runahead {

struct HttpClientOptions {
  HostPort server;
  std::string authorization = {};                     // the header's value; empty: none
  absl::Duration timeout = absl::InfiniteDuration();  // of an exchange, from connecting to its end
};

// Hears an answer. All calls come on the client's thread, one after the other, and must not block. What is not OK ends
// the exchange with it.
class HttpHearer {
 public:
  virtual ~HttpHearer() = default;
  virtual absl::Status OnHead(int status, absl::string_view content_type) = 0;
  virtual absl::Status OnBody(absl::string_view bytes) = 0;  // a piece, when it has come
  // The last call, exactly once. UNAVAILABLE: no connection, or it was cut; DEADLINE_EXCEEDED; CANCELLED; INTERNAL:
  // what came is no HTTP.
  virtual void OnEnd(const absl::Status& status) = 0;
};

// A connection serves one exchange after the other, and there are as many as there are exchanges at once. One thread is
// enough: it reads some hundred thousand events a second. Thread-safe.
class HttpClient {
 public:
  // Looks the server's name up, which may block. UNAVAILABLE: nobody has that name; RESOURCE_EXHAUSTED: no thread.
  static absl::StatusOr<std::unique_ptr<HttpClient>> Start(const HttpClientOptions& options);
  ~HttpClient();  // cancels, and waits until all have ended

  void Get(std::string path, std::shared_ptr<HttpHearer> hearer);
  void PostJson(std::string path, std::string body, std::shared_ptr<HttpHearer> hearer);
  // Ends all exchanges, and all that are begun later, with CANCELLED.
  void Cancel();

 private:
  struct Parts;
  class Exchange;
  explicit HttpClient(std::unique_ptr<Parts> parts);
  void Begin(std::shared_ptr<Exchange> exchange);

  std::unique_ptr<Parts> parts_;
};

}  // namespace runahead
