#include "server/gateway/http_session.h"

#include <poll.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/gateway/raw_http.h"
#include "tests/testing/patience.h"

namespace runahead {
namespace {

namespace asio = boost::asio;
using ::testing::HasSubstr;
using testing::RawHttp;

// A session of which nothing runs but what the test lets run: what is ready at once. Nobody waits for a timer.
class HttpSessionTest : public ::testing::Test {
 protected:
  HttpSessionTest() : client_(absl::StrCat("127.0.0.1:", listens_.local_endpoint().port())) {
    HttpSession::Socket socket = listens_.accept(asio::make_strand(io_));
    socket_ = socket.native_handle();
    std::make_shared<HttpSession>(std::move(socket), shared_, [this] { ended_ = true; })->Run();
    RunReady();
  }

  // It stops when there is nothing to wait for.
  void RunReady() {
    io_.restart();
    io_.poll();
  }

  // Runs what follows from that the client has sent something or has closed, and from that alone.
  void RunWhatTheClientDid() {
    pollfd readable = {.fd = socket_, .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(testing::LongestWait()))), 1);
    RunReady();
  }

  void Ask() {
    client_.Send("POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}");
    RunWhatTheClientDid();
    ASSERT_NE(exchange_, nullptr);
    exchange_->OnGone([this] { gone_ = true; });
    RunReady();
  }

  ByteBudget memory_{1 << 20};
  const HttpDoorOptions options_ = [this] {
    HttpDoorOptions options;
    options.memory = &memory_;
    return options;
  }();
  const HttpDoor::Handler handler_ = [this](std::shared_ptr<HttpExchange> exchange) {
    exchange_ = std::move(exchange);
  };
  HttpDoorShared shared_{options_, handler_};
  bool gone_ = false, ended_ = false;
  asio::io_context io_;
  asio::ip::tcp::acceptor listens_{io_, {asio::ip::address_v4::loopback(), 0}};
  std::shared_ptr<HttpExchange> exchange_;
  RawHttp client_;
  int socket_ = -1;
};

TEST_F(HttpSessionTest, TheCloseItselfTellsThatTheClientIsGoneAndNoTimer) {
  Ask();
  EXPECT_FALSE(gone_);
  client_.Close();
  RunWhatTheClientDid();
  EXPECT_TRUE(gone_);
  exchange_.reset();
  RunReady();
  EXPECT_TRUE(ended_);
}

TEST_F(HttpSessionTest, TheCloseItselfTellsThatTheClientOfAStreamIsGone) {
  Ask();
  exchange_->BeginEvents({});
  exchange_->Send("data: 1\n\n", [] {});
  RunReady();
  EXPECT_THAT(client_.ReadUntil("data: 1"), HasSubstr("data: 1"));
  EXPECT_FALSE(gone_);
  client_.Close();
  RunWhatTheClientDid();
  EXPECT_TRUE(gone_);
}

// The system resets such a connection.
TEST_F(HttpSessionTest, TheResetOfAStreamThatNobodyReadTellsThatTheClientIsGone) {
  Ask();
  exchange_->BeginEvents({});
  exchange_->Send("data: 1\n\n", [] {});
  RunReady();
  EXPECT_FALSE(gone_);
  client_.Close();
  RunWhatTheClientDid();
  EXPECT_TRUE(gone_);
}

}  // namespace
}  // namespace runahead
