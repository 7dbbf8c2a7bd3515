// One HTTP request and the way of its answer, without the library that carries them.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace runahead {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // "POST"
  std::string path;    // without the query
  std::string body;
  HttpHeaders headers;

  // The first of this name, in any case; empty where there is none.
  absl::string_view Header(absl::string_view name) const {
    for (const auto& [given, value] : headers) {
      if (absl::EqualsIgnoreCase(given, name)) return value;
    }
    return "";
  }
};

struct HttpReply {
  int status = 200;
  std::string body = {};
  std::string type = "application/json";
  HttpHeaders headers = {};  // beside length and type
};

// Who answers holds it. Thread-safe; nothing here waits, and of the callbacks only `sent` may be called within a call
// of it. Its end without an answer is an answer, too: 500.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual const HttpRequest& request() const = 0;

  // The whole answer.
  virtual void Reply(HttpReply reply) = 0;

  // Instead: 200 and `headers`, which go with the first text, then server-sent events as they come, then the end.
  virtual void BeginEvents(HttpHeaders headers) = 0;
  // `sent` is called once: when the system has taken the text, mostly within the call, or the client is gone.
  virtual void Send(std::string text, std::function<void()> sent) = 0;
  // `last`, which may be empty, goes with the end.
  virtual void EndEvents(std::string last) = 0;

  // `gone` is called once, where the client goes away before the end of the answer; at once where it has already. It is
  // forgotten with that end, and with what it holds.
  virtual void OnGone(std::function<void()> gone) = 0;
  // `wake` is called once in `pause`, unless the answer has ended. A later one takes the place of an earlier one.
  virtual void WakeAfter(absl::Duration pause, std::function<void()> wake) = 0;
};

}  // namespace runahead
