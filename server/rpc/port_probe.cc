#include "server/rpc/port_probe.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/status_macros.h"
#include "server/base/address.h"
#include "server/base/listening_sockets.h"
#include "server/base/random.h"

namespace runahead {
namespace {

// The head of an HTTP/2 frame, and where and what says that the frame is SETTINGS, with which every server begins.
constexpr size_t kFrameHead = 9;
constexpr size_t kTypeAt = 3;
constexpr char kSettings = 4;
// What a record of TLS begins with that goes on with the handshake.
constexpr char kTlsHandshake = 22;
// On one host it takes a fraction of that, or the queue is full: then the system would try again after 1, 3 and 7 s.
constexpr absl::Duration kConnectTime = absl::Milliseconds(100);

absl::Status Failed(absl::string_view what, int error) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(error)));
}

// Waits until the socket can do it, or has failed. DEADLINE_EXCEEDED.
absl::Status Await(const Descriptor& socket, short event, absl::Time until, absl::string_view what) {
  for (;;) {
    const int64_t left = absl::ToInt64Milliseconds(until - MonotonicNow());
    pollfd polled{socket.get(), event, 0};
    if (poll(&polled, 1, static_cast<int>(std::max<int64_t>(left, 0))) > 0) return absl::OkStatus();
    if (left <= 0) return absl::DeadlineExceededError(absl::StrCat(what, " took too long"));
  }
}

SocketAddress Loopback6(int port) {
  SocketAddress address;
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  v6->sin6_family = AF_INET6;
  v6->sin6_addr = in6addr_loopback;
  v6->sin6_port = htons(static_cast<uint16_t>(port));
  address.length = sizeof(*v6);
  return address;
}

// `host` is what stands behind 127.
SocketAddress Loopback4(uint32_t host, int port) {
  SocketAddress address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  v4->sin_family = AF_INET;
  v4->sin_addr.s_addr = htonl((INADDR_LOOPBACK & 0xff000000) | host);
  v4->sin_port = htons(static_cast<uint16_t>(port));
  address.length = sizeof(*v4);
  return address;
}

bool IsLoopback4(const SocketAddress& address) {
  return address.storage.ss_family == AF_INET && IsLoopback(NumericHost(*address.get()));
}

bool IsEverywhere(const SocketAddress& address) {
  const std::string host = NumericHost(*address.get());
  return host == "::" || host == "0.0.0.0";
}

SocketAddress WithoutPort(SocketAddress address) {
  if (address.storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_port = 0;
  } else {
    reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port = 0;
  }
  return address;
}

// Whether this machine has the address: not every one has a loopback of IPv6.
bool CanBind(const SocketAddress& address) {
  const Descriptor socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return socket.valid() && bind(socket.get(), address.get(), address.length) == 0;
}

// What the connection was is over: the socket can make another. The peer finds it reset.
void Disconnect(const Descriptor& socket) {
  sockaddr nobody{};
  nobody.sa_family = AF_UNSPEC;
  connect(socket.get(), &nobody, sizeof(nobody));
}

// What a client says first. It fits into an empty socket's buffer.
std::string TlsHello() {
  SSL_CTX* const context = SSL_CTX_new(TLS_client_method());
  SSL* const client = SSL_new(context);
  BIO* const said = BIO_new(BIO_s_mem());
  SSL_set_bio(client, BIO_new(BIO_s_mem()), said);  // which it owns then
  static constexpr unsigned char kHttp2[] = {2, 'h', '2'};
  SSL_set_alpn_protos(client, kHttp2, sizeof(kHttp2));
  SSL_set_connect_state(client);
  SSL_do_handshake(client);  // wants the answer
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(said, &bytes);  // NOLINT: OpenSSL's type
  std::string hello(bytes, static_cast<size_t>(std::max(0L, size)));
  SSL_free(client);
  SSL_CTX_free(context);
  ERR_clear_error();
  return hello;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PortProbe>> PortProbe::Create(const SocketAddress& to, AskedListener listener,
                                                             bool tls) {
  SocketAddress asked = to;
  if (IsEverywhere(to)) {
    asked = Loopback4(1, PortOf(to.storage));
    if (!CanBind(WithoutPort(asked))) asked = Loopback6(PortOf(to.storage));
  }
  // From a host of the loopback network that nobody else is: local clients may have used up the ports of 127.0.0.1.
  SocketAddress from = WithoutPort(asked);
  if (IsLoopback4(asked)) from = Loopback4(static_cast<uint32_t>(RandomBits64() % 0xfffffd) + 2, 0);
  if (!CanBind(from)) from = WithoutPort(asked);
  Descriptor socket(::socket(asked.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return Failed("a socket to ask our own port", errno);
  return std::unique_ptr<PortProbe>(new PortProbe(std::move(socket), from, asked, std::move(listener), tls));
}

PortProbe::PortProbe(Descriptor socket, const SocketAddress& from, const SocketAddress& to, AskedListener listener,
                     bool tls)
    : socket_(std::move(socket)), from_(from), to_(to), listener_(std::move(listener)), tls_(tls) {}

absl::Status PortProbe::Ask(absl::Duration timeout) {
  const uint64_t before = listener_.acceptance().all;
  const absl::Status status = ConnectAndRead(MonotonicNow() + timeout);
  Disconnect(socket_);
  if (status.ok() || absl::IsResourceExhausted(status)) return status;
  const Acceptance now = listener_.acceptance();
  if (now.expected || now.all == before) return absl::UnavailableError(status.message());
  return absl::ResourceExhaustedError(
      absl::StrCat(status.message(), ", while ", now.all - before, " other connections were accepted"));
}

absl::Status PortProbe::ConnectAndRead(absl::Time until) {
  RUNAHEAD_RETURN_IF_ERROR(Connect(until));
  if (tls_) RUNAHEAD_RETURN_IF_ERROR(SayTlsHello());
  return ReadGreeting(until);
}

absl::Status PortProbe::Connect(absl::Time until) {
  for (;;) {
    const absl::Status status = TryToConnect(std::min(until, MonotonicNow() + kConnectTime));
    if (!absl::IsDeadlineExceeded(status) || MonotonicNow() >= until) return status;
    Disconnect(socket_);
  }
}

// Bound first, for the connection may be accepted before connect() returns, and must be known by then.
absl::Status PortProbe::TryToConnect(absl::Time until) {
  if (bind(socket_.get(), from_.get(), from_.length) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("taking a port to ask from: ", std::strerror(errno)));
  }
  listener_.announce(OwnAddress(socket_));
  if (connect(socket_.get(), to_.get(), to_.length) == 0) return absl::OkStatus();
  if (errno != EINPROGRESS) return Failed("connecting", errno);
  RUNAHEAD_RETURN_IF_ERROR(Await(socket_, POLLOUT, until, "connecting"));
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  return error == 0 ? absl::OkStatus() : Failed("connecting", error);
}

absl::Status PortProbe::SayTlsHello() {
  const std::string hello = TlsHello();
  const ssize_t sent = send(socket_.get(), hello.data(), hello.size(), MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(hello.size()) ? absl::OkStatus() : Failed("saying hello", errno);
}

absl::Status PortProbe::ReadGreeting(absl::Time until) {
  std::array<char, kFrameHead> head;
  size_t done = 0;
  while (done < head.size()) {
    RUNAHEAD_RETURN_IF_ERROR(Await(socket_, POLLIN, until, "the answer"));
    const ssize_t got = recv(socket_.get(), head.data() + done, head.size() - done, 0);
    if (got == 0) return absl::UnavailableError("the connection was closed without an answer");
    if (got < 0 && errno != EAGAIN && errno != EINTR) return Failed("reading the answer", errno);
    if (got > 0) done += static_cast<size_t>(got);
  }
  if (tls_ && head[0] == kTlsHandshake) return absl::OkStatus();
  if (tls_) return absl::UnavailableError("what answered does not speak TLS");
  if (head[kTypeAt] == kSettings) return absl::OkStatus();
  return absl::UnavailableError("what answered does not speak HTTP/2");
}

}  // namespace runahead
