// What comes to the port of the metrics, in pieces: over a connection, and by who answers.
#include <fcntl.h>
#include <sys/socket.h>

#include "server/base/http_answers.h"
#include "server/base/http_connection.h"
#include "tests/fuzz/fuzz.h"

namespace runahead {
namespace {

constexpr size_t kLongestRequest = 20 << 10;  // above it nobody waits for the end

// The request as a connection makes it out when it comes `piece` bytes at a time; nothing where it is none.
std::string Received(std::string_view input, size_t piece) {
  int ends[2];
  RUNAHEAD_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
  Descriptor peer(ends[1]);
  HttpConnection connection(1, Descriptor(ends[0]), "host", absl::InfiniteFuture());
  while (!input.empty() && connection.state() == HttpConnection::State::kReading) {
    const std::string_view now = input.substr(0, piece);
    RUNAHEAD_CHECK(send(peer.get(), now.data(), now.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(now.size()));
    input.remove_prefix(now.size());
    connection.Read();
    RUNAHEAD_CHECK(connection.request().size() <= kLongestRequest + piece);
  }
  if (connection.state() != HttpConnection::State::kAsked) return "";
  connection.Answer("HTTP/1.1 200 OK\r\n\r\n", absl::InfiniteFuture());
  RUNAHEAD_CHECK(connection.state() == HttpConnection::State::kEnded);
  return connection.request();
}

}  // namespace

void Fuzz(std::string_view input) {
  static const HttpAnswers& answers = []() -> HttpAnswers& {
    auto& made = *new HttpAnswers;
    made.Get("/metrics", [] { return HttpText{200, "runahead_up 1\n"}; });
    return made;
  }();
  const std::string request = Received(input, 1 << 10);
  RUNAHEAD_CHECK(Received(input, 7) == request);
  if (request.empty()) return;
  RUNAHEAD_CHECK(request.ends_with("\r\n\r\n") && input.starts_with(request));
  const std::string answer = answers.Answer(request);
  // What speaks no HTTP may get no answer; who gets one gets a whole one.
  RUNAHEAD_CHECK(answer.empty() || (answer.starts_with("HTTP/1.") && answer.find("\r\n\r\n") != std::string::npos));
}

}  // namespace runahead
