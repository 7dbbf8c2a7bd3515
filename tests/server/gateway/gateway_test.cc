// The gateway in front of a whole router with fake workers, as a client over HTTP sees it.
#include "server/gateway/gateway.h"

#include <nlohmann/json.hpp>
#include <tuple>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/gateway/openai/calls.h"
#include "tests/server/gateway/gateway_fixture.h"
#include "tests/server/gateway/raw_http.h"
#include "tests/testing/await.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;
using testing::kHello;
using ::testing::Not;
using testing::RawHttp;
using ::testing::StartsWith;

Json Parsed(const std::string& text) {
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

class GatewayTest : public testing::GatewayFixture {};

TEST_F(GatewayTest, AChatIsAnsweredAsTheServiceAnswersIt) {
  StartGateway();
  const auto reply = Post("/v1/chat/completions", kHello, {{"x-request-id", "mine-1"}});
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 200) << reply->body;
  EXPECT_EQ(reply->get_header_value("x-request-id"), "mine-1");
  v1::GenerateRequest same;
  auto& message = *same.mutable_chat()->add_messages();
  message.set_role("user");
  message.set_content("hello");
  same.mutable_sampling()->set_temperature(1);
  same.mutable_sampling()->set_seed(7);
  same.mutable_stop()->set_max_tokens(4);
  const testing::Got got = Generate(same);
  ASSERT_TRUE(got.status.ok()) << got.status;
  const Json json = Parsed(reply->body);
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["model"], model_.name);
  EXPECT_EQ(json["choices"][0]["message"]["content"], got.text());
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(json["usage"]["prompt_tokens"], got.started().prompt_tokens());
  EXPECT_EQ(json["usage"]["completion_tokens"], 4);
  EXPECT_THAT(Metrics(), HasSubstr("runahead_gateway_requests_total{code=\"200\",route=\"/v1/chat/completions\"} 1"));
}

TEST_F(GatewayTest, AStreamBringsTheSameTextAndEndsWithDone) {
  StartGateway();
  const auto whole = Post("/v1/chat/completions", kHello);
  ASSERT_TRUE(whole);
  std::string body = kHello;
  body.insert(1, R"("stream": true, "stream_options": {"include_usage": true}, )");
  const auto reply = Post("/v1/chat/completions", body);
  ASSERT_TRUE(reply);
  EXPECT_THAT(reply->get_header_value("Content-Type"), StartsWith("text/event-stream"));
  const std::vector<std::string> events = Events(reply->body);
  ASSERT_GE(events.size(), 4u) << reply->body;
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(Parsed(events.front())["choices"][0]["delta"]["role"], "assistant");
  std::string text;
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    const Json delta = Parsed(events[i])["choices"][0]["delta"];
    if (delta.contains("content")) text += delta["content"].get<std::string>();
    EXPECT_EQ(Parsed(events[i])["id"], Parsed(events.front())["id"]);
  }
  EXPECT_EQ(text, Parsed(whole->body)["choices"][0]["message"]["content"]);
  const Json usage = Parsed(events[events.size() - 2]);
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["completion_tokens"], 4);
}

TEST_F(GatewayTest, SeveralChoicesComeTogether) {
  StartGateway();
  const auto reply =
      Post("/v1/completions", R"({"prompt": ["one", "two"], "n": 2, "max_tokens": 3, "temperature": 0})");
  ASSERT_TRUE(reply);
  const Json json = Parsed(reply->body);
  ASSERT_EQ(json["choices"].size(), 4u) << reply->body;
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(json["choices"][i]["index"], i);
    EXPECT_EQ(json["choices"][i]["text"], json["choices"][0]["text"]);  // fake workers say the same of any prompt
  }
  EXPECT_EQ(json["usage"]["completion_tokens"], 12);
}

TEST_F(GatewayTest, WithoutMaxTokensAChatMayFillTheContext) {
  StartGateway();
  const auto reply = Post("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "hello"}]})");
  ASSERT_TRUE(reply);
  const Json usage = Parsed(reply->body)["usage"];
  EXPECT_EQ(usage["total_tokens"], testing::kFixtureContext) << reply->body;
}

TEST_F(GatewayTest, RefusalsAreTheFieldsErrors) {
  StartGateway();
  struct Case {
    std::string path, body;
    int status;
    std::string says;
  };
  for (const Case& refused : std::vector<Case>{
           {"/v1/chat/completions", "{", 400, "invalid_request_error"},
           {"/v1/chat/completions", R"({"messages": []})", 400, "messages"},
           {"/v1/chat/completions", R"({"messages": [{"role": "user", "content": "hi"}], "top_p": 2})", 400,
            R"("param":"top_p")"},
           {"/v1/chat/completions", R"({"messages": [{"role": "user", "content": "hi"}], "model": "other"})", 404,
            "model_not_found"},
           {"/v1/completions", R"({"prompt": "hi", "max_tokens": 100000})", 400, "context_length_exceeded"},
           {"/v1/chat/completions",
            absl::StrCat(R"({"messages": [{"role": "user", "content": ")", std::string(5000, '7'), R"("}]})"), 400,
            R"("param":"messages")"},
           {"/v1/chat/completions",
            R"({"messages": [{"role": "user", "content": "hi"}], "guided_json": {"minimum": 3, "maximum": 2}})", 400,
            R"("message":"guided_json: at the root: no number is within its bounds")"},
           {"/v1/chat/completions",
            R"({"messages": [{"role": "user", "content": "hi"}], "guided_json": {"const": {"a": 1, "a": 2}}})", 400,
            R"("message":"guided_json: at /const/a: it is given twice")"},
           {"/v1/completions", R"({"prompt": "hi", "guided_json": "{\"type\": \"null\", \"type\": \"string\"}"})", 400,
            R"("message":"guided_json: at /type: it is given twice")"},
           {"/v1/chat/completions",
            R"({"messages": [{"role": "user", "content": "hi"}], "response_format": {"type": "json_schema",)"
            R"( "json_schema": {"name": "n", "schema": {"properties": {"a": {}, "a": true}}}}})",
            400, R"("message":"response_format.json_schema.schema: at /properties/a: it is given twice")"},
           {"/v1/chat/completion", "{}", 404, "no such path"},
           {"/v1/responses", "{}", 404, "use /v1/chat/completions"},
           {"/v1/responses/resp_1", "{}", 404, "use /v1/chat/completions"},
           {"/v1/responsesx", "{}", 404, "no such path"},
           {"/v1/embeddings", "{}", 404, "embeddings are not served"},
           {"/v1/audio/speech", "{}", 404, "audio is not served"},
           {"/chat/completions", "{}", 404, "base URL of this API ends with /v1"}}) {
    const auto reply = Post(refused.path, refused.body);
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, refused.status) << reply->body;
    EXPECT_THAT(reply->body, HasSubstr(refused.says));
    EXPECT_TRUE(Parsed(reply->body)["error"]["message"].is_string()) << reply->body;
  }
  const auto wrong_method = client_->Get("/v1/chat/completions");
  ASSERT_TRUE(wrong_method);
  EXPECT_EQ(wrong_method->status, 405);
  EXPECT_EQ(wrong_method->get_header_value("Allow"), "POST, OPTIONS");
}

TEST_F(GatewayTest, OverloadSaysWhenToTryAgain) {
  testing::RouterSetup setup;
  setup.max_streams = 1;
  setup.queue_size = 0;
  StartGateway(setup);
  decode_[0]->Change([](testing::FakeBehaviour& behaviour) { behaviour.decode_until = 1; });
  RawHttp first(gateway_->address());
  first.Send(absl::StrCat("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: ",
                          sizeof kHello - 1, "\r\n\r\n", kHello));
  decode_[0]->AwaitDecodes(1);
  const auto reply = Post("/v1/chat/completions", kHello);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 429) << reply->body;
  EXPECT_EQ(reply->get_header_value("Retry-After"), "1");
  first.Close();
  decode_[0]->AwaitLeases(0);
}

TEST_F(GatewayTest, AClientThatGoesAwayEndsItsCall) {
  GatewayOptions options;
  options.quiet_time = absl::Hours(1);  // nothing is written meanwhile that would find it gone
  StartGateway({}, options);
  decode_[0]->Change([](testing::FakeBehaviour& behaviour) { behaviour.decode_until = 1; });
  for (const bool streams : {false, true}) {
    std::string body = kHello;
    if (streams) body.insert(1, R"("stream": true, )");
    RawHttp client(gateway_->address());
    client.Send(absl::StrCat("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: ", body.size(),
                             "\r\n\r\n", body));
    if (streams) {
      EXPECT_THAT(client.ReadUntil("\"delta\":{\"content\":\""), HasSubstr("\"role\":\"assistant\""));
    }
    decode_[0]->AwaitDecodes(streams ? 2 : 1);
    client.Close();
    decode_[0]->AwaitLeases(0);
  }
  EXPECT_TRUE(testing::Await("both are counted", [&] {
    return absl::StrContains(Metrics(), "\nrunahead_gateway_clients_gone_total 2\n");
  })) << Metrics();
}

// A stream of kHello that is on its way.
RawHttp Streamed(const std::string& gateway) {
  std::string body = kHello;
  body.insert(1, R"("stream": true, )");
  RawHttp client(gateway);
  client.Send(absl::StrCat("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: ", body.size(),
                           "\r\n\r\n", body));
  return client;
}

TEST_F(GatewayTest, CommentsComeUntilTheFirstTokenAndNoneBehindIt) {
  constexpr char kComment[] = ": waiting\n\n";
  GatewayOptions options;
  options.quiet_time = absl::Milliseconds(2);
  testing::RouterSetup setup{.prefill = 1};
  setup.known_beginnings = false;  // both streams are prefilled
  StartGateway(setup, options);
  prefill_[0]->Change([](testing::FakeBehaviour& behaviour) { behaviour.first_token = behaviour.done = false; });
  decode_[0]->Change([](testing::FakeBehaviour& behaviour) { behaviour.decode_until = 1; });
  RawHttp speaks = Streamed(gateway_->address());
  const uint64_t job = prefill_[0]->AwaitStarts(1)[0].job();
  for (int i = 0; i < 3; ++i) ASSERT_THAT(speaks.ReadUntil(kComment), HasSubstr(kComment));
  prefill_[0]->SendFirstToken(job, 65);
  prefill_[0]->SendDone(job);
  speaks.ReadUntil("\"delta\":{\"content\":\"");
  // While another stream is told to wait, this one is not, though nothing comes of it either.
  RawHttp waits = Streamed(gateway_->address());
  for (int i = 0; i < 5; ++i) ASSERT_THAT(waits.ReadUntil(kComment), HasSubstr(kComment));
  decode_[0]->Change([](testing::FakeBehaviour& behaviour) { behaviour.decode_until = 1 << 30; });
  EXPECT_THAT(speaks.ReadUntil("[DONE]"), AllOf(HasSubstr("[DONE]"), Not(HasSubstr(kComment))));
}

TEST_F(GatewayTest, AnErrorBehindTheFirstEventIsAnEvent) {
  StartGateway();
  decode_[0]->Change([](testing::FakeBehaviour& behaviour) {
    behaviour.decode_until = 1;
    behaviour.generate_end = grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "the worker is wrong");
  });
  std::string body = kHello;
  body.insert(1, R"("stream": true, )");
  const auto reply = Post("/v1/chat/completions", body);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 200);
  const std::vector<std::string> events = Events(reply->body);
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_TRUE(Parsed(events[events.size() - 2]).contains("error")) << reply->body;
}

TEST_F(GatewayTest, SaysWhichModelIsServedAndTurnsTextIntoIdsAndBack) {
  GatewayOptions options;
  options.model_aliases = {"gpt-4o"};
  StartGateway({}, options);
  const auto models = client_->Get("/v1/models");
  ASSERT_TRUE(models);
  const Json list = Parsed(models->body);
  ASSERT_EQ(list["data"].size(), 2u) << models->body;
  EXPECT_EQ(list["data"][0]["id"], model_.name);
  EXPECT_EQ(list["data"][0]["max_model_len"], testing::kFixtureContext);
  EXPECT_EQ(client_->Get("/v1/models/gpt-4o")->status, 200);
  EXPECT_EQ(client_->Get("/v1/models/gpt-5")->status, 404);
  const auto ids = Post("/tokenize", R"({"prompt": "hello", "model": "gpt-4o", "add_special_tokens": false})");
  ASSERT_TRUE(ids);
  const Json tokens = Parsed(ids->body);
  EXPECT_EQ(tokens["count"], tokens["tokens"].size()) << ids->body;
  EXPECT_EQ(tokens["max_model_len"], testing::kFixtureContext);
  const auto text = Post("/detokenize", Json{{"tokens", tokens["tokens"]}}.dump());
  ASSERT_TRUE(text);
  EXPECT_EQ(Parsed(text->body)["prompt"], "hello") << text->body;
}

TEST_F(GatewayTest, HealthIsTheRouters) {
  StartGateway();
  EXPECT_EQ(client_->Get("/health")->status, 503);
  server_->SetServing(true);
  EXPECT_EQ(client_->Get("/health")->status, 200);
  EXPECT_THAT(client_->Get("/metrics")->body, HasSubstr("runahead_gateway_requests_in_flight"));
}

TEST_F(GatewayTest, OnLoopbackItAnswersToNoNameThatItWasNotGiven) {
  GatewayOptions options;
  options.allowed_hosts = {"Chat.example.org"};
  StartGateway({}, options);
  for (const char* host : {"localhost", "LocalHost:8000", "127.0.0.1:1", "10.1.2.3", "[::1]:8000", "[fe80::1]",
                           "chat.example.org", "chat.example.org:443", ""}) {
    const auto reply = client_->Get("/v1/models", {{"Host", host}});
    ASSERT_TRUE(reply) << host;
    EXPECT_EQ(reply->status, 200) << host;
  }
  for (const char* host : {"evil.example.org", "evil.example.org:8000", "localhost.example.org",
                           "127.0.0.1.example.org", "0x7f.1", "[evil]"}) {
    // Its own page's origin is no help.
    const auto reply =
        Post("/v1/chat/completions", kHello, {{"Host", host}, {"Origin", absl::StrCat("http://", host)}});
    ASSERT_TRUE(reply) << host;
    EXPECT_EQ(reply->status, 403) << host;
    EXPECT_THAT(Parsed(reply->body)["error"]["message"].get<std::string>(), HasSubstr("allowed_hosts")) << host;
  }
}

TEST(HostsOfTest, AreNoneOnLoopbackAndAllElsewhereUnlessTheyAreNamed) {
  const auto hosts = [](const std::string& listen, const std::vector<std::string>& allowed) {
    GatewayOptions options;
    options.listen = listen;
    options.allowed_hosts = allowed;
    return HostsOf(options);
  };
  EXPECT_THAT(hosts("127.0.0.1:8000", {}), ElementsAre());
  EXPECT_THAT(hosts("[::1]:8000", {}), ElementsAre());
  EXPECT_THAT(hosts("localhost:8000", {}), ElementsAre());
  EXPECT_THAT(hosts("0.0.0.0:8000", {}), ElementsAre("*"));
  EXPECT_THAT(hosts("0.0.0.0:8000", {"gateway"}), ElementsAre("gateway"));
  EXPECT_THAT(hosts("127.0.0.1:8000", {"*"}), ElementsAre("*"));
}

TEST_F(GatewayTest, PagesOfOtherOriginsCallOnlyWhereTheyMay) {
  GatewayOptions options;
  options.cors_origins = {"https://chat.example.org"};
  StartGateway({}, options);
  EXPECT_EQ(Post("/v1/chat/completions", kHello, {{"Origin", "https://evil.example.org"}})->status, 403);
  const auto own = Post("/v1/chat/completions", kHello,
                        {{"Origin", "http://" + gateway_->address()}, {"Host", gateway_->address()}});
  EXPECT_EQ(own->status, 200);
  EXPECT_FALSE(own->has_header("Access-Control-Allow-Origin"));
  const auto allowed = Post("/v1/chat/completions", kHello, {{"Origin", "https://chat.example.org"}});
  EXPECT_EQ(allowed->status, 200);
  EXPECT_EQ(allowed->get_header_value("Access-Control-Allow-Origin"), "https://chat.example.org");
  const auto asked = client_->Options("/v1/chat/completions", {{"Origin", "https://chat.example.org"}});
  EXPECT_EQ(asked->status, 204);
  EXPECT_THAT(asked->get_header_value("Access-Control-Allow-Headers"), HasSubstr("Authorization"));
}

TEST_F(GatewayTest, APageToTryItIsServedThatLoadsNothingFromElsewhere) {
  StartGateway();
  for (const auto& [path, type, part] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"/", "text/html; charset=utf-8", "<script src=\"page.js\" defer></script>"},
           {"/page.css", "text/css; charset=utf-8", "prefers-color-scheme: dark"},
           {"/page.js", "text/javascript; charset=utf-8", "\"v1/chat/completions\""},
           {"/openapi.json", "application/json", "\"openapi\": \"3.1.0\""}}) {
    const auto reply = client_->Get(path);
    ASSERT_TRUE(reply) << path;
    EXPECT_EQ(reply->status, 200);
    EXPECT_EQ(reply->get_header_value("Content-Type"), type);
    EXPECT_EQ(reply->get_header_value("X-Content-Type-Options"), "nosniff");
    EXPECT_THAT(reply->get_header_value("Content-Security-Policy"),
                AllOf(HasSubstr("default-src 'self'"), HasSubstr("frame-ancestors 'none'"), Not(HasSubstr("unsafe"))));
    EXPECT_THAT(reply->body, HasSubstr(part));
    EXPECT_THAT(reply->body, Not(HasSubstr("://"))) << "another address";
  }
  // What the policy forbids: a script, a style or a handler within the page.
  EXPECT_THAT(client_->Get("/")->body, AllOf(Not(HasSubstr("<style")), Not(HasSubstr(" style=")),
                                             Not(ContainsRegex(" on[a-z]+=")), Not(HasSubstr("<script>"))));
  const auto post = Post("/", "{}");
  ASSERT_TRUE(post);
  EXPECT_EQ(post->status, 405);
}

TEST_F(GatewayTest, TheDescriptionOfTheApiHasPathsAndMembersThatThereAre) {
  StartGateway();
  const auto reply = client_->Get("/openapi.json");
  ASSERT_TRUE(reply);
  const Json description = Parsed(reply->body);
  ASSERT_TRUE(description.is_object());
  for (const auto& [path, methods] : description["paths"].items()) {
    for (const auto& method : methods.items()) {
      const auto options = client_->Options(path);
      ASSERT_TRUE(options) << path;
      EXPECT_EQ(options->status, 204) << path;
      EXPECT_THAT(options->get_header_value("Access-Control-Allow-Methods"),
                  StartsWith(absl::AsciiStrToUpper(method.key())));
    }
  }
  const DoorFacts facts{"tiny", {}};
  for (const char* schema : {"Sampling", "ChatRequest", "CompletionRequest"}) {
    for (const auto& member : description["components"]["schemas"][schema]["properties"].items()) {
      if (member.key() == "messages" || member.key() == "prompt") continue;
      const bool chat = schema != std::string("CompletionRequest");
      const Json body = {
          {"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"prompt", "a"}, {member.key(), nullptr}};
      const auto calls = chat ? ReadChatRequest(body.dump(), facts) : ReadCompletionRequest(body.dump(), facts);
      ASSERT_TRUE(calls.ok()) << calls.status();
      EXPECT_THAT(calls->ignored, Not(::testing::Contains(member.key())));
    }
  }
}

}  // namespace
}  // namespace runahead
