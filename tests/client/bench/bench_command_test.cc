// `runahead bench` as a program, against servers whose answers the test writes.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/bench/scripted_http.h"
#include "tests/client/generate/fake_inference.h"
#include "tests/testing/await.h"
#include "tests/testing/test_process.h"

namespace runahead {
namespace {

using testing::Chunk;
using testing::FakeInference;
using ::testing::HasSubstr;
using testing::HttpAnswer;
using testing::kEventsHead;
using testing::kLastChunk;
using ::testing::Not;
using testing::ScriptedHttp;
using testing::TestProcess;
using Writer = FakeInference::Writer;
using Connection = ScriptedHttp::Connection;

std::vector<std::string> Bench(const std::vector<std::string>& more) {
  std::vector<std::string> args = {RUNAHEAD_BINARY, "bench"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

absl::Status AnswerFully(const v1::GenerateRequest& request, Writer& writer) {
  writer.Write(testing::Started());
  for (int i = 0; i < request.stop().max_tokens(); ++i) writer.Write(testing::Text("a"));
  v1::GenerateResponse finished = testing::Finished();
  finished.mutable_finished()->mutable_usage()->set_prompt_tokens(request.token_ids().ids_size());
  finished.mutable_finished()->mutable_usage()->set_completion_tokens(request.stop().max_tokens());
  writer.Write(finished);
  return absl::OkStatus();
}

TEST(BenchCommand, LoadsARouterAndSavesWhatItSaw) {
  std::atomic<int> requests = 0;
  FakeInference router([&](const v1::GenerateRequest& request, Writer& writer) {
    ++requests;
    EXPECT_TRUE(request.stop().ignore_eos());
    return AnswerFully(request, writer);
  });
  const std::string file = absl::StrCat(::testing::TempDir(), "/bench-", getpid(), ".json");
  TestProcess process(Bench({"--router", router.address(), "--prompts", "20", "--input-tokens", "10", "--output-tokens",
                             "4", "--concurrency", "5", "--warmup", "2", "--seed", "9", "--json", file}));
  EXPECT_EQ(process.Wait(), 0) << process.err();
  EXPECT_EQ(requests, 22);
  EXPECT_THAT(process.out(), HasSubstr("Successful requests:                     20\n"));
  EXPECT_THAT(process.out(), HasSubstr("Total input tokens:                      200\n"));
  EXPECT_THAT(process.out(), HasSubstr("Total generated tokens:                  80\n"));
  EXPECT_THAT(process.err(), HasSubstr("fake-model"));
  EXPECT_THAT(process.err(), HasSubstr("seed 9"));
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  const auto json = nlohmann::json::parse(text.str());
  EXPECT_EQ(json["completed"], 20);
  EXPECT_EQ(json["ttfts"].size(), 20u);
  EXPECT_LE(json["max_concurrent_requests"], 5);
  TestProcess again(Bench({"--router", router.address(), "--json", file}));
  EXPECT_EQ(again.Wait(), 2);
  EXPECT_THAT(again.err(), HasSubstr("--force"));
  unlink(file.c_str());
}

TEST(BenchCommand, LoadsAServerOfTheOpenAiApi) {
  std::atomic<int> chats = 0;
  ScriptedHttp server([&](const std::string& request, Connection& connection) {
    if (request.rfind("GET ", 0) == 0) {
      return connection.Write(HttpAnswer(200, "application/json", R"({"data": [{"id": "served"}]})"));
    }
    EXPECT_THAT(request, HasSubstr("Authorization: Bearer k-1\r\n"));
    EXPECT_THAT(request, HasSubstr("\"model\":\"served\""));
    EXPECT_THAT(request, HasSubstr("\"ignore_eos\":true"));
    ++chats;
    const std::string token = "data: {\"choices\": [{\"delta\": {\"content\": \"a\"}}]}\n\n";
    return connection.Write(kEventsHead + Chunk(token) + Chunk(token + "data: [DONE]\n\n") + kLastChunk);
  });
  TestProcess process(Bench({"--url", server.url(), "--chat", "--prompts", "6", "--rate", "1000", "--warmup", "1",
                             "--goodput", "e2e:100000", "--json"}),
                      {"RUNAHEAD_API_KEY=k-1"});
  EXPECT_EQ(process.Wait(), 0) << process.err();
  EXPECT_EQ(chats, 7);
  const auto json = nlohmann::json::parse(process.out());
  EXPECT_EQ(json["completed"], 6);
  EXPECT_EQ(json["counted_by_events"], 6);
  EXPECT_EQ(json["total_output_tokens"], 12);
  EXPECT_EQ(json["model_id"], "served");
  EXPECT_GT(json["request_goodput"], 0);
  EXPECT_THAT(process.err(), Not(HasSubstr("k-1")));
}

TEST(BenchCommand, FailuresAreNamedAndCountInNothing) {
  std::atomic<int> requests = 0;
  FakeInference router([&](const v1::GenerateRequest& request, Writer& writer) {
    if (++requests % 2 == 0) return absl::ResourceExhaustedError("the queue is full");
    return AnswerFully(request, writer);
  });
  const std::vector<std::string> args = {"--router", router.address(), "--prompts", "4", "--concurrency",
                                         "1",        "--warmup",       "0"};
  TestProcess some(Bench(args));
  EXPECT_EQ(some.Wait(), 0) << some.err();
  EXPECT_THAT(some.out(), HasSubstr("Successful requests:                     2\n"));
  EXPECT_THAT(some.out(), HasSubstr("Failed requests:                         2\n"));
  EXPECT_THAT(some.out(), HasSubstr("failed, refused: 2; the first: the queue is full"));
  std::vector<std::string> strict = args;
  strict.push_back("--fail-on-error");
  EXPECT_EQ(TestProcess(Bench(strict)).Wait(), 1);
}

TEST(BenchCommand, WhereAllFailItFails) {
  FakeInference router([](const v1::GenerateRequest&, Writer&) { return absl::UnavailableError("no workers"); });
  TestProcess warm(Bench({"--router", router.address(), "--prompts", "3"}));
  EXPECT_EQ(warm.Wait(), 1);
  EXPECT_THAT(warm.err(), HasSubstr("the warm-up failed"));
  EXPECT_THAT(warm.err(), HasSubstr("no workers"));
  EXPECT_EQ(warm.out(), "");
  TestProcess cold(Bench({"--router", router.address(), "--prompts", "3", "--warmup", "0"}));
  EXPECT_EQ(cold.Wait(), 1);
  EXPECT_THAT(cold.out(), HasSubstr("failed, UNAVAILABLE: 3"));
  TestProcess nobody(Bench({"--url", "http://127.0.0.1:1", "--model", "m"}));
  EXPECT_EQ(nobody.Wait(), 1);
  EXPECT_EQ(TestProcess(Bench({})).Wait(), 2);
}

TEST(BenchCommand, CtrlCReportsWhatWasDone) {
  std::atomic<int> requests = 0;
  FakeInference router([&](const v1::GenerateRequest& request, Writer& writer) {
    if (++requests <= 3) return AnswerFully(request, writer);
    testing::WriteForEver(writer);
    return absl::OkStatus();
  });
  TestProcess process(Bench({"--router", router.address(), "--prompts", "10", "--concurrency", "1", "--warmup", "0"}));
  ASSERT_TRUE(testing::Await("the fourth request is under way", [&] { return requests >= 4; }));
  process.Signal(SIGINT);
  EXPECT_EQ(process.Wait(), 128 + SIGINT);
  EXPECT_THAT(process.out(), HasSubstr("Successful requests:                     3\n"));
  EXPECT_THAT(process.out(), HasSubstr("Failed requests:                         0\n"));
  EXPECT_THAT(process.out(), HasSubstr("Interrupted requests:                    1\n"));
  EXPECT_THAT(process.out(), HasSubstr("Requests not sent:                       6\n"));
}

}  // namespace
}  // namespace runahead
