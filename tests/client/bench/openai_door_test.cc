// Against a server whose bytes the test writes.
#include "client/bench/openai_door.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/bench/heard_answer.h"
#include "tests/client/bench/scripted_http.h"
#include "tests/client/generate/fake_inference.h"

namespace runahead {
namespace {

using testing::Chunk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::HeardAnswer;
using testing::HttpAnswer;
using testing::kEventsHead;
using testing::kLastChunk;
using testing::ScriptedHttp;
using Connection = ScriptedHttp::Connection;

constexpr char kOne[] = "data: {\"choices\": [{\"text\": \"a\", \"finish_reason\": null}]}\n\n";
constexpr char kUsage[] = "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 5, \"completion_tokens\": 2}}\n\n";
constexpr char kDoneEvent[] = "data: [DONE]\n\n";

std::unique_ptr<OpenAiDoor> OpenDoor(const ScriptedHttp& server, const std::string& key = "",
                                     absl::Duration timeout = absl::InfiniteDuration()) {
  const auto url = ParseServerUrl(server.url());
  EXPECT_TRUE(url.ok()) << url.status();
  auto door = OpenAiDoor::Open(*url, key, timeout);
  EXPECT_TRUE(door.ok()) << door.status();
  (*door)->SetModel("m");
  return *std::move(door);
}

std::shared_ptr<HeardAnswer> Ask(OpenAiDoor& door, const BenchRequest& request = {.prompt = "One", .max_tokens = 3}) {
  auto answer = std::make_shared<HeardAnswer>();
  door.Ask(request, answer);
  return answer;
}

// What one request ends with where the server answers with these bytes and closes.
struct Ended {
  absl::Status status;
  std::vector<int64_t> arrivals;
};
Ended EndOf(const std::string& bytes) {
  ScriptedHttp server([&](const std::string&, Connection& connection) {
    connection.Write(bytes);
    return false;
  });
  const auto door = OpenDoor(server);
  const auto answer = Ask(*door);
  return {answer->Await(), answer->arrivals()};
}

TEST(OpenAiDoor, AskedAsTheFieldAsks) {
  std::string seen;
  ScriptedHttp server([&](const std::string& request, Connection& connection) {
    seen = request;
    connection.Write(kEventsHead + Chunk(std::string(kOne) + kOne + kUsage + kDoneEvent) + kLastChunk);
    return true;
  });
  const auto door = OpenDoor(server, "secret");
  const auto answer = Ask(*door);
  EXPECT_TRUE(answer->Await().ok());
  EXPECT_THAT(answer->arrivals(), ElementsAre(1, 1));
  EXPECT_EQ(answer->counts().input_tokens, 5);
  EXPECT_EQ(answer->counts().output_tokens, 2);
  EXPECT_THAT(seen, HasSubstr("POST /v1/completions HTTP/1.1\r\n"));
  EXPECT_THAT(seen, HasSubstr("Authorization: Bearer secret\r\n"));
  EXPECT_THAT(seen, HasSubstr(absl::StrCat("Host: 127.0.0.1:", server.port(), "\r\n")));
  EXPECT_THAT(seen, HasSubstr("\"prompt\":\"One\""));
  EXPECT_TRUE(Ask(*door, {.messages = {{"user", "Hi"}}})->Await().ok());
  EXPECT_THAT(seen, HasSubstr("POST /v1/chat/completions HTTP/1.1\r\n"));
  EXPECT_EQ(server.connections(), 1) << "the second request takes the first one's connection";
}

TEST(OpenAiDoor, TokensAreHeardWhenTheyCome) {
  testing::Gate seen;
  ScriptedHttp server([&](const std::string&, Connection& connection) {
    connection.Write(kEventsHead + Chunk(": waiting\n\n") + Chunk(kOne));
    seen.Wait();
    connection.Write(Chunk(std::string(kOne) + kDoneEvent) + kLastChunk);
    return true;
  });
  const auto door = OpenDoor(server);
  const auto answer = Ask(*door);
  answer->AwaitArrivals(1);
  EXPECT_THAT(answer->arrivals(), ElementsAre(1));
  seen.Open();
  EXPECT_TRUE(answer->Await().ok());
  EXPECT_THAT(answer->arrivals(), ElementsAre(1, 1));
}

TEST(OpenAiDoor, EventsMayBeCutAnywhereAndEndWithTheConnection) {
  const std::string one = kOne, events = one + "\r\n: comment\r\n" + one + kDoneEvent;
  std::string cut = kEventsHead;
  for (const char c : events) cut += Chunk(std::string(1, c));
  for (const std::string& bytes :
       {cut + kLastChunk, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + events,
        "HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + events}) {
    const Ended ended = EndOf(bytes);
    EXPECT_TRUE(ended.status.ok()) << ended.status;
    EXPECT_THAT(ended.arrivals, ElementsAre(1, 1));
  }
}

TEST(OpenAiDoor, GarbageIsAFailureWithAMessage) {
  const std::string head = kEventsHead;
  struct Case {
    std::string bytes;
    absl::StatusCode code;
    std::string says;
  };
  for (const Case& garbage : std::vector<Case>{
           {"", absl::StatusCode::kUnavailable, "cut"},
           {"SSH-2.0-OpenSSH\r\n\r\n", absl::StatusCode::kInternal, "no HTTP"},
           {std::string(300'000, 'x'), absl::StatusCode::kInternal, "no HTTP"},
           {"HTTP/1.1 200 " + std::string(100'000, 'x'), absl::StatusCode::kInternal, "no HTTP"},
           {"HTTP/1.1 2", absl::StatusCode::kUnavailable, "cut"},
           {head + Chunk(kOne), absl::StatusCode::kUnavailable, "cut"},
           {head + Chunk(kOne) + kLastChunk, absl::StatusCode::kUnavailable, "without [DONE]"},
           {head + "zz\r\n", absl::StatusCode::kInternal, "no HTTP"},
           {head + Chunk("data: {\n\n"), absl::StatusCode::kInternal, "no JSON object"},
           {head + Chunk("data: {\"error\": {\"message\": \"out of memory\"}}\n\n"), absl::StatusCode::kInternal,
            "out of memory"},
           {"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 99999999999999999\r\n\r\n",
            absl::StatusCode::kUnavailable, "cut"},
           {HttpAnswer(200, "application/json", "{}"), absl::StatusCode::kInternal, "no stream of events"},
           {HttpAnswer(500, "text/plain", "boom"), absl::StatusCode::kInternal, "HTTP 500: boom"},
           {HttpAnswer(429, "application/json", R"({"error": {"message": "busy"}})"),
            absl::StatusCode::kResourceExhausted, "HTTP 429: busy"},
           {HttpAnswer(500, "text/plain", std::string(2 << 20, 'x')), absl::StatusCode::kInternal, "too long"}}) {
    const Ended ended = EndOf(garbage.bytes);
    EXPECT_EQ(ended.status.code(), garbage.code) << garbage.bytes.substr(0, 100) << ": " << ended.status;
    EXPECT_THAT(ended.status.message(), HasSubstr(garbage.says)) << garbage.bytes.substr(0, 100);
  }
}

TEST(OpenAiDoor, NobodyThereIsAFailure) {
  auto url = ParseServerUrl("http://127.0.0.1:1");
  ASSERT_TRUE(url.ok()) << url.status();
  const auto door = OpenAiDoor::Open(*url, "", absl::InfiniteDuration());
  ASSERT_TRUE(door.ok()) << door.status();
  EXPECT_TRUE(absl::IsUnavailable(Ask(**door)->Await()));
  EXPECT_TRUE(absl::IsUnavailable((*door)->FirstModel().status()));
}

TEST(OpenAiDoor, AConnectionThatIsClosedBetweenRequestsIsMadeAnew) {
  std::atomic<int> requests = 0;
  ScriptedHttp server([&](const std::string&, Connection& connection) {
    // The second one on a connection is not answered.
    if (++requests == 2) return false;
    return connection.Write(kEventsHead + Chunk(std::string(kOne) + kDoneEvent) + kLastChunk);
  });
  const auto door = OpenDoor(server);
  EXPECT_TRUE(Ask(*door)->Await().ok());
  EXPECT_TRUE(Ask(*door)->Await().ok());
  EXPECT_EQ(server.connections(), 2);
}

TEST(OpenAiDoor, CancelEndsWhatIsUnderWayAndWhatComesLater) {
  ScriptedHttp server([](const std::string&, Connection& connection) {
    connection.Write(kEventsHead + Chunk(kOne));
    return true;  // and says nothing more
  });
  const auto door = OpenDoor(server);
  std::vector<std::shared_ptr<HeardAnswer>> answers;
  for (int i = 0; i < 5; ++i) answers.push_back(Ask(*door));
  for (const auto& answer : answers) answer->AwaitArrivals(1);
  door->Cancel();
  for (const auto& answer : answers) EXPECT_TRUE(absl::IsCancelled(answer->Await()));
  EXPECT_TRUE(absl::IsCancelled(Ask(*door)->Await()));
}

TEST(OpenAiDoor, ARequestHasATimeLimit) {
  ScriptedHttp server(
      [](const std::string&, Connection& connection) { return connection.Write(kEventsHead + Chunk(kOne)); });
  const auto door = OpenDoor(server, "", absl::Milliseconds(50));
  EXPECT_TRUE(absl::IsDeadlineExceeded(Ask(*door)->Await()));
}

TEST(OpenAiDoor, TheFirstListedModelIsTheServers) {
  std::string body = R"({"object": "list", "data": [{"id": "big/model"}, {"id": "other"}]})";
  ScriptedHttp server([&](const std::string& request, Connection& connection) {
    EXPECT_TRUE(absl::StartsWith(request, "GET /v1/models HTTP/1.1\r\n")) << request;
    return connection.Write(HttpAnswer(200, "application/json", body));
  });
  const auto door = OpenDoor(server);
  const auto model = door->FirstModel();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(*model, "big/model");
  for (const char* const other : {"", "[]", "{\"data\": []}", "{\"data\": [{\"id\": 5}]}", "{\"data\": [5]}"}) {
    body = other;
    EXPECT_TRUE(absl::IsInternal(door->FirstModel().status())) << other;
  }
}

TEST(ServerUrl, HasAHostAndMayHavePortAndPath) {
  const auto full = ParseServerUrl("http://host-1:8000/v1/");
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_EQ(full->server.host, "host-1");
  EXPECT_EQ(full->server.port, 8000);
  EXPECT_EQ(full->path, "/v1");
  const auto bare = ParseServerUrl("http://[::1]");
  ASSERT_TRUE(bare.ok()) << bare.status();
  EXPECT_EQ(bare->server.host, "::1");
  EXPECT_EQ(bare->server.port, 80);
  EXPECT_EQ(bare->path, "/v1");
  EXPECT_EQ(ParseServerUrl("http://a:1/")->path, "");
  for (const char* const wrong : {"", "host:8000", "https://host", "http://", "http://host:99999", "http://host:x/v1",
                                  "http://host:1/v1 HTTP/1.1\r\nX: y", "ftp://host"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseServerUrl(wrong).status())) << wrong;
  }
}

}  // namespace
}  // namespace runahead
