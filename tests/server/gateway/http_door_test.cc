#include "server/gateway/http_door.h"

#include <atomic>
#include <deque>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/mutex.h"
#include "tests/server/gateway/raw_http.h"
#include "tests/testing/await.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RawHttp;
using ::testing::StartsWith;

// A door whose requests a test answers when it likes.
class HttpDoorTest : public ::testing::Test {
 protected:
  ~HttpDoorTest() override {
    MutexLock lock(mu_);
    asked_.clear();
  }

  void Start(HttpDoorOptions options = {}) {
    options.listen = "127.0.0.1:0";
    options.memory = &memory_;
    options.connections = &connections_;
    auto door = HttpDoor::Start(options, [this](std::shared_ptr<HttpExchange> exchange) {
      MutexLock lock(mu_);
      asked_.push_back(std::move(exchange));
      changed_.NotifyAll();
    });
    ASSERT_TRUE(door.ok()) << door.status();
    door_ = *std::move(door);
  }

  // The next request; null where none comes.
  std::shared_ptr<HttpExchange> Next() {
    const absl::Time end = absl::Now() + testing::Patience(absl::Seconds(20));
    MutexLock lock(mu_);
    while (asked_.empty() && absl::Now() < end) changed_.WaitFor(mu_, end - absl::Now());
    if (asked_.empty()) return nullptr;
    std::shared_ptr<HttpExchange> exchange = std::move(asked_.front());
    asked_.pop_front();
    return exchange;
  }

  // Answers the next request with its own body.
  void Echo() {
    const auto exchange = Next();
    ASSERT_NE(exchange, nullptr);
    exchange->Reply({.body = absl::StrCat(exchange->request().method, " ", exchange->request().path, " ",
                                          exchange->request().body)});
  }

  MetricRegistry registry_{"none"};
  ConnectionMetrics connections_{registry_, "http"};
  ByteBudget memory_{1 << 20};
  Mutex mu_;
  CondVar changed_;
  std::deque<std::shared_ptr<HttpExchange>> asked_ RUNAHEAD_GUARDED_BY(mu_);
  std::unique_ptr<HttpDoor> door_;
};

TEST_F(HttpDoorTest, AnswersRequestAfterRequestOverOneConnection) {
  Start();
  RawHttp client(door_->address());
  for (const char* const body : {"one", "two", ""}) {
    client.Send(absl::StrCat("POST /a?b=c HTTP/1.1\r\nHost: h\r\nX-Word: w\r\nContent-Length: ",
                             absl::string_view(body).size(), "\r\n\r\n", body));
    const auto exchange = Next();
    ASSERT_NE(exchange, nullptr);
    EXPECT_EQ(exchange->request().path, "/a");
    EXPECT_EQ(exchange->request().body, body);
    EXPECT_EQ(exchange->request().Header("x-word"), "w");
    exchange->Reply({.status = 201, .body = "made", .headers = {{"x-more", "m"}}});
    EXPECT_THAT(client.ReadAnswer(),
                AllOf(StartsWith("HTTP/1.1 201 Created\r\n"), HasSubstr("x-more: m\r\n"),
                      HasSubstr("Content-Type: application/json\r\n"), ::testing::EndsWith("made")));
  }
}

// Whether the system asks the other end of the connection of `port` (a client's, on loopback) if it is there: by the
// timer that /proc/net/tcp shows at our end. 2 is that one, and 0 none.
int TimerOfServersEnd(int port) {
  std::ifstream file("/proc/net/tcp");
  const std::string remote = absl::StrFormat(":%04X", port);
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() > 5 && absl::EndsWith(words[2], remote)) return std::stoi(words[5].substr(0, 2), nullptr, 16);
  }
  return -1;
}

TEST_F(HttpDoorTest, TheSystemAsksWhetherClientsAreStillThere) {
  Start();
  RawHttp client(door_->address());
  client.Send("GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
  Echo();
  client.ReadAnswer();
  EXPECT_TRUE(testing::Await("the timer runs", [&] { return TimerOfServersEnd(client.port()) == 2; }));
}

TEST_F(HttpDoorTest, TakesRequestsThatWereSentAtOnceInTheirOrder) {
  Start();
  RawHttp client(door_->address());
  client.Send("GET /1 HTTP/1.1\r\nHost: h\r\n\r\nGET /2 HTTP/1.1\r\nHost: h\r\n\r\n");
  Echo();
  Echo();
  EXPECT_THAT(client.ReadAnswer(), HasSubstr("GET /1"));
  EXPECT_THAT(client.ReadAnswer(), HasSubstr("GET /2"));
}

TEST_F(HttpDoorTest, AsksForABodyThatWaitsToBeAskedFor) {
  Start();
  RawHttp client(door_->address());
  client.Send("POST /a HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("hi");
  Echo();
  EXPECT_THAT(client.ReadAnswer(), HasSubstr("POST /a hi"));
}

TEST_F(HttpDoorTest, ReadsABodyOfChunks) {
  Start();
  RawHttp client(door_->address());
  client.Send("POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\n");
  client.Send("de\r\n0\r\n\r\n");
  Echo();
  EXPECT_THAT(client.ReadAnswer(), HasSubstr("POST /a abcde"));
}

TEST_F(HttpDoorTest, ClosesBehindItsAnswerWhereTheClientSaysSo) {
  Start();
  for (const char* const request :
       {"GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "GET /a HTTP/1.0\r\n\r\n"}) {
    RawHttp client(door_->address());
    client.Send(request);
    Echo();
    EXPECT_THAT(client.ReadToEnd(), HasSubstr("GET /a"));
  }
}

TEST_F(HttpDoorTest, AHeadIsAnsweredWithoutABody) {
  Start();
  RawHttp client(door_->address());
  client.Send("HEAD /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  Echo();
  EXPECT_THAT(client.ReadToEnd(), AllOf(HasSubstr("Content-Length: 8\r\n"), Not(HasSubstr("HEAD /a"))));
}

TEST_F(HttpDoorTest, RefusesWhatIsNoRequestOrTooLarge) {
  HttpDoorOptions options;
  options.max_body = 100;
  Start(options);
  for (const auto& [request, status] : std::vector<std::pair<std::string, std::string>>{
           {"what is this\r\n\r\n", "400"},
           {"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 101\r\n\r\n", "413"},
           {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n80\r\n" + std::string(128, 'x') + "\r\n",
            "413"},
           {"GET /a HTTP/1.1\r\nHost: h\r\nX: " + std::string(40 << 10, 'x') + "\r\n\r\n", "431"},
           {"POST /a HTTP/1.1\r\nHost: h\r\nExpect: a miracle\r\nContent-Length: 5\r\n\r\n", "417"},
           {"POST /a HTTP/1.1\r\nHost: h\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello", "415"},
           {"GET /a HTTP/1.1\r\n\r\n", "400"},
           {"GET /a HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400"}}) {
    RawHttp client(door_->address());
    client.Send(request);
    EXPECT_THAT(client.ReadToEnd(), AllOf(StartsWith(absl::StrCat("HTTP/1.1 ", status)), HasSubstr("{\"error\":{")))
        << request.substr(0, 60);
  }
}

TEST_F(HttpDoorTest, ABodyWhoseEncodingIsNoneIsRead) {
  Start();
  RawHttp client(door_->address());
  client.Send("POST /a HTTP/1.1\r\nHost: h\r\nContent-Encoding: Identity\r\nContent-Length: 2\r\n\r\nhi");
  Echo();
  EXPECT_THAT(client.ReadAnswer(), HasSubstr("POST /a hi"));
}

TEST_F(HttpDoorTest, BodiesForWhichThereIsNoMemoryAreRefusedWithWhenToTryAgain) {
  Start();
  RawHttp client(door_->address());
  client.Send(absl::StrCat("POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: ", 600 << 10, "\r\n\r\n"));
  EXPECT_THAT(client.ReadToEnd(), AllOf(StartsWith("HTTP/1.1 429"), HasSubstr("Retry-After: 1")));
  EXPECT_TRUE(testing::Await("the memory is free", [&] { return memory_.taken() == 0; })) << memory_.taken();
  RawHttp next(door_->address());
  next.Send("POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi");
  Echo();
  EXPECT_THAT(next.ReadAnswer(), HasSubstr("POST /a hi"));
  EXPECT_TRUE(testing::Await("the memory is free", [&] { return memory_.taken() == 0; })) << memory_.taken();
}

TEST_F(HttpDoorTest, MoreConnectionsThanMayBeAreClosedAndCounted) {
  HttpDoorOptions options;
  options.max_connections = 1;
  Start(options);
  RawHttp first(door_->address());
  first.Send("GET /1 HTTP/1.1\r\nHost: h\r\n\r\n");
  Echo();
  EXPECT_THAT(first.ReadAnswer(), HasSubstr("GET /1"));
  RawHttp second(door_->address());
  EXPECT_EQ(second.ReadToEnd(), "");
  EXPECT_EQ(connections_.refused(ConnectionRefusal::kLimit).Value(), 1);
  first.Close();
  EXPECT_TRUE(testing::Await("no connection is open", [&] { return connections_.open.Value() == 0; }));
}

TEST_F(HttpDoorTest, StreamsEventsAsTheyCome) {
  Start();
  RawHttp client(door_->address());
  client.Send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
  const auto exchange = Next();
  ASSERT_NE(exchange, nullptr);
  exchange->BeginEvents({{"x-more", "m"}});
  exchange->Send("data: 1\n\n", [] {});
  EXPECT_THAT(client.ReadUntil("data: 1\n\n"), AllOf(HasSubstr("Content-Type: text/event-stream"),
                                                     HasSubstr("Transfer-Encoding: chunked"), HasSubstr("x-more: m")));
  exchange->Send("data: 2\n\n", [] {});
  exchange->EndEvents("data: 3\n\n");
  EXPECT_THAT(client.ReadUntil("\r\n0\r\n\r\n"), HasSubstr("9\r\ndata: 2\n\n\r\n9\r\ndata: 3\n\n\r\n0\r\n"));
  client.Send("GET /b HTTP/1.1\r\nHost: h\r\n\r\n");  // the connection goes on
  Echo();
  EXPECT_THAT(client.ReadAnswer(), HasSubstr("GET /b"));
}

TEST_F(HttpDoorTest, SaysThatATextIsSentOnlyWhenTheSystemHasTakenIt) {
  Start();
  RawHttp client(door_->address(), /*receive_buffer=*/4096);
  client.Send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
  const auto exchange = Next();
  ASSERT_NE(exchange, nullptr);
  exchange->BeginEvents({});
  std::atomic<int> sent = 0;
  const std::string large(16 << 20, 'x');  // more than any socket keeps
  exchange->Send(large, [&] { ++sent; });
  exchange->Send("data: end\n\n", [&] { ++sent; });
  EXPECT_THAT(client.ReadUntil("xx"), HasSubstr("text/event-stream"));
  EXPECT_EQ(sent, 0);
  EXPECT_THAT(client.ReadUntil("data: end\n\n"), HasSubstr("x"));
  EXPECT_TRUE(testing::Await("both texts are sent", [&] { return sent == 2; }));
  exchange->EndEvents("");
  EXPECT_THAT(client.ReadUntil("0\r\n\r\n"), HasSubstr("0\r\n\r\n"));
}

TEST_F(HttpDoorTest, WhoAnswersHearsThatTheClientIsGone) {
  Start();
  for (const bool streams : {false, true}) {
    RawHttp client(door_->address());
    client.Send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
    const auto exchange = Next();
    ASSERT_NE(exchange, nullptr);
    std::atomic<int> gone = 0, sent = 0;
    if (streams) {
      exchange->BeginEvents({});
      exchange->Send("data: 1\n\n", [&] { ++sent; });
      client.ReadUntil("data: 1\n\n");
    }
    exchange->OnGone([&] { ++gone; });
    client.Close();
    EXPECT_TRUE(testing::Await("the client is gone", [&] { return gone == 1; }));
    exchange->Send("data: 2\n\n", [&] { ++sent; });  // is heard of, too
    EXPECT_TRUE(testing::Await("the text has ended", [&] { return sent == (streams ? 2 : 1); }));
    std::atomic<int> late = 0;
    exchange->OnGone([&] { ++late; });
    EXPECT_TRUE(testing::Await("who asks later hears it", [&] { return late == 1; }));
    EXPECT_EQ(gone, 1);
  }
}

// Also where it had sent its next request already, and where it still reads: nobody can tell it from one that does not.
TEST_F(HttpDoorTest, WhoSendsMoreAndEndsItsSendingIsGone) {
  Start();
  for (const char* const more : {"", "GET /b HTTP/1.1\r\nHost: h\r\n\r\n"}) {
    RawHttp client(door_->address());
    client.Send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
    const auto exchange = Next();
    ASSERT_NE(exchange, nullptr);
    std::atomic<int> gone = 0;
    exchange->OnGone([&] { ++gone; });
    client.Send(more);
    client.EndSending();
    EXPECT_TRUE(testing::Await("the client is gone", [&] { return gone == 1; }));
    exchange->Reply({.body = "a"});
    EXPECT_EQ(client.ReadToEnd(), "");
  }
  EXPECT_TRUE(testing::Await("no connection is open", [&] { return connections_.open.Value() == 0; }));
}

TEST_F(HttpDoorTest, WhatComesBesideAnAnswerIsTheNextRequest) {
  Start();
  RawHttp client(door_->address());
  client.Send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
  const auto exchange = Next();
  ASSERT_NE(exchange, nullptr);
  const std::string much(20000, 'b');  // more than is looked at early
  client.Send(absl::StrCat("POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: ", much.size(), "\r\n\r\n", much));
  exchange->Reply({.body = "a"});
  EXPECT_THAT(client.ReadAnswer(), HasSubstr("\r\n\r\na"));
  Echo();
  EXPECT_THAT(client.ReadAnswer(), HasSubstr("POST /b " + much));
}

TEST_F(HttpDoorTest, WhoSaysNothingForLongIsCutOff) {
  HttpDoorOptions options;
  options.head_time = options.body_time = absl::Milliseconds(50);
  Start(options);
  RawHttp nothing(door_->address()), part(door_->address()), body(door_->address());
  part.Send("GET /a HT");
  body.Send("POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc");
  for (RawHttp* const client : {&nothing, &part, &body}) EXPECT_EQ(client->ReadToEnd(), "");
  EXPECT_TRUE(testing::Await("no connection is open", [&] { return connections_.open.Value() == 0; }));
}

TEST_F(HttpDoorTest, WhoTakesNothingForLongIsCutOff) {
  HttpDoorOptions options;
  options.write_time = absl::Milliseconds(50);
  Start(options);
  const std::string large(16 << 20, 'x');  // more than any socket keeps
  for (const bool streams : {false, true}) {
    RawHttp client(door_->address(), /*receive_buffer=*/4096);
    client.Send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
    auto exchange = Next();
    ASSERT_NE(exchange, nullptr);
    std::atomic<int> sent = 0, gone = 0;
    exchange->OnGone([&] { ++gone; });
    if (streams) {
      exchange->BeginEvents({});
      exchange->Send(large, [&] { ++sent; });
    } else {
      exchange->Reply({.body = large});
    }
    EXPECT_TRUE(testing::Await("the client is given up", [&] { return gone == 1; }));
    EXPECT_EQ(sent, streams ? 1 : 0);
    exchange.reset();  // it holds the connection
    EXPECT_TRUE(testing::Await("no connection is open", [&] { return connections_.open.Value() == 0; }));
  }
}

TEST_F(HttpDoorTest, ATargetMayBeCodedAndNameTheServer) {
  Start();
  RawHttp client(door_->address());
  for (const auto& [target, path] : std::vector<std::pair<std::string, std::string>>{
           {"/a%20b%2fc?d=%20", "/a b/c"},
           {"/%zz%2", "/%zz%2"},
           {"http://localhost:80/a%41", "/aA"},
           {"HTTP://localhost", "/"},
       }) {
    client.Send(absl::StrCat("GET ", target, " HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    const auto exchange = Next();
    ASSERT_NE(exchange, nullptr) << target;
    EXPECT_EQ(exchange->request().path, path);
    exchange->Reply({.body = "."});
    client.ReadAnswer();
  }
}

TEST_F(HttpDoorTest, WakesWhoAnswersAfterAWhile) {
  Start();
  RawHttp client(door_->address());
  client.Send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
  const auto exchange = Next();
  ASSERT_NE(exchange, nullptr);
  exchange->WakeAfter(absl::Milliseconds(1), [&] { exchange->Reply({.body = "awake"}); });
  EXPECT_THAT(client.ReadAnswer(), HasSubstr("awake"));
}

TEST_F(HttpDoorTest, AnExchangeThatNobodyAnswersIsAnError) {
  Start();
  RawHttp client(door_->address());
  client.Send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_NE(Next(), nullptr);
  EXPECT_THAT(client.ReadAnswer(), StartsWith("HTTP/1.1 500"));
}

TEST_F(HttpDoorTest, IsThereForWhoAnswersWhileItHasNoPortAndNoConnectionAnyMore) {
  Start();
  RawHttp client(door_->address());
  client.Send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
  const auto exchange = Next();
  ASSERT_NE(exchange, nullptr);
  std::atomic<int> gone = 0;
  exchange->OnGone([&] { ++gone; });
  client.Close();
  ASSERT_TRUE(testing::Await("the client is gone", [&] { return gone == 1; }));
  EXPECT_FALSE(door_->Drain(absl::Milliseconds(100)));  // the exchange is still held
  exchange->Send("data: late\n\n", [&] { ++gone; });
  EXPECT_TRUE(testing::Await("who sends is answered", [&] { return gone == 2; }));
}

TEST_F(HttpDoorTest, DrainsBehindTheAnswersThatAreUnderWay) {
  Start();
  RawHttp idle(door_->address()), busy(door_->address());
  busy.Send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
  const auto exchange = Next();
  ASSERT_NE(exchange, nullptr);
  EXPECT_FALSE(door_->Drain(absl::ZeroDuration()));
  EXPECT_EQ(idle.ReadToEnd(), "");
  exchange->Reply({.body = "last"});
  EXPECT_THAT(busy.ReadToEnd(), AllOf(HasSubstr("Connection: close"), HasSubstr("last")));
}

}  // namespace
}  // namespace runahead
