#include "server/gateway/http_session.h"

#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/gateway/openai/error.h"

namespace runahead {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

constexpr uint32_t kMostHeadBytes = 32 << 10;
constexpr size_t kReadBytes = 64 << 10;
constexpr size_t kMostEarlyBytes = 16 << 10;
// What a body becomes on its way: its text, and what was read of it.
constexpr int64_t kCopiesOfBody = 2;
// A refused client that still writes would not see why, if its connection were cut.
constexpr absl::Duration kLingerTime = absl::Seconds(2);

std::chrono::nanoseconds Nanoseconds(absl::Duration duration) {
  return absl::ToChronoNanoseconds(duration);
}

// "%20" is a blank; what is no such code stays.
std::string Decoded(absl::string_view path) {
  std::string text;
  for (size_t i = 0; i < path.size(); ++i) {
    const bool coded = path[i] == '%' && i + 2 < path.size() &&
                       absl::ascii_isxdigit(static_cast<uint8_t>(path[i + 1])) &&
                       absl::ascii_isxdigit(static_cast<uint8_t>(path[i + 2]));
    absl::StrAppend(&text, coded ? absl::HexStringToBytes(path.substr(i + 1, 2)) : std::string(1, path[i]));
    if (coded) i += 2;
  }
  return text;
}

// Of a target, as "/v1/models?x=y", or with the address of a server before it, as for a proxy.
std::string PathOf(absl::string_view target) {
  for (const absl::string_view scheme : {"http://", "https://"}) {
    if (!absl::StartsWithIgnoreCase(target, scheme)) continue;
    const size_t begin = target.find('/', scheme.size());
    target = begin == target.npos ? "/" : target.substr(begin);
    break;
  }
  return Decoded(target.substr(0, target.find('?')));
}

std::string EventsHead(const HttpHeaders& headers, bool chunked, bool keep_alive) {
  std::string head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n";
  for (const auto& [name, value] : headers) absl::StrAppend(&head, name, ": ", value, "\r\n");
  absl::StrAppend(&head, chunked ? "Transfer-Encoding: chunked\r\n" : "", keep_alive ? "" : "Connection: close\r\n",
                  "\r\n");
  return head;
}

// `text` is not empty: an empty one would be the end.
std::string Chunk(absl::string_view text) {
  return absl::StrCat(absl::Hex(text.size()), "\r\n", text, "\r\n");
}

}  // namespace

// The answer to one request of a session.
class HttpSession::Exchange final : public HttpExchange {
 public:
  Exchange(std::shared_ptr<HttpSession> session, HttpRequest request)
      : session_(std::move(session)),
        number_(session_->number_),
        chunked_(session_->chunked_),
        keep_alive_(session_->keep_alive_),
        events_(session_->events_),
        request_(std::move(request)) {}
  ~Exchange() override {
    if (!answered_) Reply({.status = 500, .body = ToOpenAiError(absl::InternalError("nothing was answered")).body});
  }

  const HttpRequest& request() const override { return request_; }
  void Reply(HttpReply reply) override {
    answered_ = true;
    session_->Reply(number_, std::move(reply));
  }
  void BeginEvents(HttpHeaders headers) override {
    answered_ = true;
    if (session_->shared_.draining || !chunked_) keep_alive_ = false;
    events_->Hold(EventsHead(headers, chunked_, keep_alive_));
  }
  void Send(std::string text, std::function<void()> sent) override {
    events_->Send(chunked_ ? Chunk(text) : std::move(text), std::move(sent));
  }
  void EndEvents(std::string last) override {
    if (chunked_) last = absl::StrCat(last.empty() ? "" : Chunk(last), "0\r\n\r\n");
    events_->End(std::move(last), [session = session_, number = number_, keep_alive = keep_alive_.load()] {
      session->EventsEnded(number, keep_alive);
    });
  }
  void OnGone(std::function<void()> gone) override { session_->OnGone(number_, std::move(gone)); }
  void WakeAfter(absl::Duration pause, std::function<void()> wake) override {
    session_->WakeAfter(number_, pause, std::move(wake));
  }

 private:
  const std::shared_ptr<HttpSession> session_;
  const uint64_t number_;
  const bool chunked_;
  std::atomic<bool> keep_alive_;
  const std::shared_ptr<EventOutput> events_;
  const HttpRequest request_;
  std::atomic<bool> answered_{false};
};

HttpSession::HttpSession(Socket socket, HttpDoorShared& shared, std::function<void()> ended)
    : ending_{std::move(ended)},
      shared_(shared),
      stream_(std::move(socket)),
      timer_(stream_.get_executor()),
      buffer_(kMostHeadBytes + kReadBytes),
      memory_(shared.options.memory->None()) {}

// `function` hears whether that exchange is the one under way.
template <typename Function>
void HttpSession::Post(uint64_t number, Function function) {
  asio::post(stream_.get_executor(), [self = shared_from_this(), number, function = std::move(function)]() mutable {
    function(self->number_ == number && self->state_ != State::kReading);
  });
}

void HttpSession::Run() {
  asio::dispatch(stream_.get_executor(), [self = shared_from_this()] { self->ReadHead(); });
}

void HttpSession::CloseIfIdle() {
  asio::post(stream_.get_executor(), [self = shared_from_this()] {
    if (self->state_ == State::kReading) self->stream_.close();
  });
}

void HttpSession::Close() {
  asio::post(stream_.get_executor(), [self = shared_from_this()] { self->Cut(); });
}

void HttpSession::ReadHead() {
  state_ = State::kReading;
  if (shared_.draining) return stream_.close();
  chunked_ = true;  // what is no HTTP at all is answered as HTTP/1.1
  parser_.emplace();
  parser_->header_limit(kMostHeadBytes);
  parser_->body_limit(static_cast<uint64_t>(shared_.options.max_body));
  stream_.expires_after(Nanoseconds(shared_.options.head_time));
  http::async_read_header(stream_, buffer_, *parser_,
                          [self = shared_from_this()](Error error, size_t) { self->HeadCame(error); });
}

void HttpSession::HeadCame(Error error) {
  if (error) return RefuseRead(error);
  keep_alive_ = parser_->get().keep_alive();
  chunked_ = parser_->get().version() >= 11;
  head_only_ = parser_->get().method() == http::verb::head;
  stream_.expires_after(Nanoseconds(shared_.options.body_time));
  const size_t hosts = parser_->get().count(http::field::host);
  if (hosts > 1 || (hosts == 0 && chunked_)) return Refuse(400, "a request of HTTP/1.1 names one Host");
  const auto encodings = parser_->get().equal_range(http::field::content_encoding);
  if (!std::all_of(encodings.first, encodings.second,
                   [](const auto& one) { return beast::iequals(one.value(), "identity"); })) {
    return Refuse(415, "Content-Encoding: bodies are read as they are; send this one uncompressed");
  }
  const auto expect = parser_->get()[http::field::expect];
  if (expect.empty() || parser_->is_done()) return ReadBody();
  if (!beast::iequals(expect, "100-continue")) return Refuse(417, "Expect: only 100-continue is known");
  wire_ = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(stream_, asio::buffer(wire_), [self = shared_from_this()](Error failed, size_t) {
    if (failed) return self->stream_.close();
    self->ReadBody();
  });
}

// Piece by piece, each counted before the next is taken.
void HttpSession::ReadBody() {
  if (!ChargeBody()) return;
  if (parser_->is_done()) return Handle();
  http::async_read_some(stream_, buffer_, *parser_,
                        [self = shared_from_this()](Error error, size_t) { self->BodyCame(error); });
}

void HttpSession::BodyCame(Error error) {
  if (error) return RefuseRead(error);
  ReadBody();
}

bool HttpSession::ChargeBody() {
  const uint64_t announced = parser_->content_length().value_or(0);  // max_body at most
  const int64_t bytes = kCopiesOfBody * static_cast<int64_t>(std::max(announced, parser_->get().body().capacity()));
  if (bytes <= memory_.bytes() || memory_.Resize(bytes)) return true;
  Refuse(429, "there is no memory left for the bodies of requests; try again later");
  return false;
}

void HttpSession::RefuseRead(Error error) {
  if (error == http::error::body_limit) {
    return Refuse(413, absl::StrCat("the body has more than ", shared_.options.max_body, " bytes"));
  }
  if (error == http::error::header_limit)
    return Refuse(431, absl::StrCat("the head has more than ", kMostHeadBytes, " bytes"));
  const bool is_http = error.category() == make_error_code(http::error::bad_method).category();
  if (is_http && error != http::error::end_of_stream && error != http::error::partial_message) {
    return Refuse(400, absl::StrCat("the request is no HTTP/1.1: ", error.message()));
  }
  stream_.close();
}

void HttpSession::Refuse(int status, const std::string& message) {
  keep_alive_ = false;
  HttpReply reply{.status = status};
  OpenAiError error =
      ToOpenAiError(status == 429 ? absl::ResourceExhaustedError(message) : absl::InvalidArgumentError(message));
  reply.body = std::move(error.body);
  if (status == 429) reply.headers.emplace_back("Retry-After", "1");
  ++number_;
  state_ = State::kAnswering;
  WriteReply(std::move(reply));
}

void HttpSession::Handle() {
  stream_.expires_never();
  HttpRequest request;
  auto message = parser_->release();
  parser_.reset();
  request.method = std::string(message.method_string());
  request.path = PathOf({message.target().data(), message.target().size()});
  for (const auto& field : message) {
    request.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  }
  request.body = std::move(message.body());
  state_ = State::kAnswering;
  ++number_;
  events_ =
      std::make_shared<EventOutput>(stream_.socket().native_handle(), [weak = weak_from_this(), number = number_] {
        const std::shared_ptr<HttpSession> self = weak.lock();
        if (self == nullptr) return;
        self->Post(number, [session = self.get()](bool current) {
          if (current && !session->gone_) session->WriteRest();
        });
      });
  WatchPeer();
  shared_.handler(std::make_shared<Exchange>(shared_from_this(), std::move(request)));
}

// A client that goes away while it is answered closes its end: the socket becomes readable. So it does where a client
// sends its next request early, which is kept for later. One that sends more than kMostEarlyBytes is not watched.
void HttpSession::WatchPeer() {
  stream_.socket().async_wait(Socket::wait_read, [self = shared_from_this(), number = number_](Error error) {
    if (!error && self->number_ == number && self->state_ == State::kAnswering) self->PeerStirred();
  });
}

void HttpSession::PeerStirred() {
  if (buffer_.size() >= kMostEarlyBytes) return;
  const auto room = buffer_.prepare(kMostEarlyBytes - buffer_.size());
  const ssize_t got = recv(stream_.socket().native_handle(), room.data(), room.size(), MSG_DONTWAIT);
  if (got > 0) buffer_.commit(static_cast<size_t>(got));
  if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR))) return WatchPeer();
  Cut();
}

void HttpSession::Reply(uint64_t number, HttpReply reply) {
  Post(number, [this, reply = std::move(reply)](bool current) mutable {
    if (current && state_ == State::kAnswering) WriteReply(std::move(reply));
  });
}

void HttpSession::WriteReply(HttpReply reply) {
  if (shared_.draining) keep_alive_ = false;
  response_.emplace(static_cast<http::status>(reply.status), chunked_ ? 11 : 10);
  for (const auto& [name, value] : reply.headers) response_->insert(name, value);
  response_->set(http::field::content_type, reply.type);
  response_->content_length(reply.body.size());
  response_->keep_alive(keep_alive_);
  if (!head_only_) response_->body() = std::move(reply.body);
  serializer_.emplace(*response_);
  WriteReplyPiece();
}

// A client has write_time for each piece that it takes.
void HttpSession::WriteReplyPiece() {
  stream_.expires_after(Nanoseconds(shared_.options.write_time));
  http::async_write_some(stream_, *serializer_, [self = shared_from_this()](Error error, size_t) {
    if (error || self->serializer_->is_done()) return self->ReplyWritten(error);
    self->WriteReplyPiece();
  });
}

void HttpSession::ReplyWritten(Error error) {
  const bool refused = parser_.has_value();  // the rest of the request may still come
  serializer_.reset();
  response_.reset();
  if (error) return Cut();
  if (refused) return Linger();
  NextRequest(keep_alive_);
}

void HttpSession::NextRequest(bool keep_alive) {
  Forget();
  Error ignored;
  if (!keep_alive) {
    stream_.socket().shutdown(Socket::shutdown_send, ignored);
    return stream_.close();
  }
  stream_.socket().cancel(ignored);  // nobody watches the peer any more
  ReadHead();
}

// Ends our side, and throws away what still comes for a while.
void HttpSession::Linger() {
  Forget();
  Error ignored;
  stream_.socket().shutdown(Socket::shutdown_send, ignored);
  stream_.expires_after(Nanoseconds(kLingerTime));
  linger_.resize(kReadBytes);
  // Each read has the same end: expires_after is said once.
  auto again = [self = shared_from_this()](auto& read, Error error) -> void {
    if (error) return self->stream_.close();
    self->stream_.async_read_some(asio::buffer(self->linger_),
                                  [read](Error failed, size_t) mutable { read(read, failed); });
  };
  again(again, {});
}

void HttpSession::EventsEnded(uint64_t number, bool keep_alive) {
  Post(number, [this, keep_alive](bool current) {
    if (current && !gone_) NextRequest(keep_alive);
  });
}

// What the system did not take at once.
void HttpSession::WriteRest() {
  wire_ = events_->TakeRest();
  WriteRestPiece(0);
}

void HttpSession::WriteRestPiece(size_t begin) {
  stream_.expires_after(Nanoseconds(shared_.options.write_time));
  stream_.async_write_some(asio::buffer(wire_) + begin,
                           [self = shared_from_this(), number = number_, begin](Error error, size_t taken) {
                             if (self->number_ != number || self->gone_) return;
                             if (error) return self->Cut();
                             if (begin + taken < self->wire_.size()) return self->WriteRestPiece(begin + taken);
                             self->stream_.expires_never();
                             if (self->events_->RestWritten()) self->WriteRest();
                           });
}

void HttpSession::OnGone(uint64_t number, std::function<void()> gone) {
  Post(number, [this, gone = std::move(gone)](bool current) mutable {
    if (!current) return;
    if (gone_) return gone();
    on_gone_ = std::move(gone);
  });
}

void HttpSession::WakeAfter(uint64_t number, absl::Duration pause, std::function<void()> wake) {
  Post(number, [this, number, pause, wake = std::move(wake)](bool current) mutable {
    if (!current || gone_) return;
    timer_.expires_after(Nanoseconds(pause));
    timer_.async_wait([self = shared_from_this(), number, wake = std::move(wake)](Error error) {
      if (!error && self->number_ == number && !self->gone_ && self->state_ != State::kReading) wake();
    });
  });
}

// Closes the connection, whatever is under way.
void HttpSession::Cut() {
  if (events_ != nullptr) events_->Close();
  stream_.close();
  if (gone_) return;
  gone_ = true;
  const std::function<void()> gone = std::move(on_gone_);
  Forget();
  if (gone) gone();
}

// The exchange has ended.
void HttpSession::Forget() {
  state_ = gone_ ? State::kEnded : State::kReading;
  on_gone_ = nullptr;
  if (events_ != nullptr) events_->Close();
  events_.reset();
  timer_.cancel();
  memory_ = shared_.options.memory->None();
}

}  // namespace runahead
