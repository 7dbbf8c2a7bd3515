// One connection of the HTTP port: request after request, each answered before the next is read.
#pragma once

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/gateway/event_output.h"
#include "server/gateway/http_door.h"

namespace runahead {

// What all connections of a door share; outlives them.
struct HttpDoorShared {
  const HttpDoorOptions& options;
  const HttpDoor::Handler& handler;
  std::atomic<bool> draining{false};
};

// All of it runs on its strand, but for what posts there, and for events, which are written by whoever sends them. Held
// by what it waits for, and by the exchange that it serves; ends with the connection.
class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  using Socket = boost::asio::ip::tcp::socket;

  // `ended` is called when nothing of it is left.
  HttpSession(Socket socket, HttpDoorShared& shared, std::function<void()> ended);

  void Run();          // reads the first request
  void CloseIfIdle();  // where no request is under way
  void Close();        // whatever is

 private:
  class Exchange;
  using Error = boost::system::error_code;
  enum class State { kReading, kAnswering, kEnded };  // of the exchange that is under way

  // For the exchange that is under way (`number`); those of others do nothing.
  void Reply(uint64_t number, HttpReply reply);
  void EventsEnded(uint64_t number, bool keep_alive);
  void OnGone(uint64_t number, std::function<void()> gone);
  void WakeAfter(uint64_t number, absl::Duration pause, std::function<void()> wake);

  template <typename Function>
  void Post(uint64_t number, Function function);
  void ReadHead();
  void HeadCame(Error error);
  void ReadBody();
  void BodyCame(Error error);
  bool ChargeBody();
  void RefuseRead(Error error);
  void Handle();
  void WatchPeer();
  void PeerStirred();
  // Answers what HTTP itself refuses, then closes.
  void Refuse(int status, const std::string& message);
  void WriteReply(HttpReply reply);
  void WriteReplyPiece();
  void ReplyWritten(Error error);
  void WriteRest();
  void WriteRestPiece(size_t begin);
  void NextRequest(bool keep_alive);
  void Linger();
  void Cut();
  void Forget();

  struct Ending {
    std::function<void()> ended;
    ~Ending() { ended(); }
  };
  const Ending ending_;  // the first member, so that it ends last
  HttpDoorShared& shared_;
  boost::beast::tcp_stream stream_;
  boost::asio::steady_timer timer_;
  boost::beast::flat_buffer buffer_;
  ByteBudget::Lease memory_;  // of the body
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  std::optional<boost::beast::http::response<boost::beast::http::string_body>> response_;
  std::optional<boost::beast::http::response_serializer<boost::beast::http::string_body>> serializer_;  // of it
  State state_ = State::kReading;
  uint64_t number_ = 0;  // of the exchange
  bool gone_ = false;
  bool keep_alive_ = false;
  bool head_only_ = false;  // HEAD
  bool chunked_ = false;    // HTTP/1.1; an answer of events to 1.0 ends with the connection
  std::function<void()> on_gone_;
  std::shared_ptr<EventOutput> events_;  // of the exchange that is under way
  std::string wire_;                     // that is being written
  std::string linger_;
};

}  // namespace runahead
