#include "server/gateway/openai/other_routes.h"

#include <nlohmann/json.hpp>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

using Json = nlohmann::json;

const DoorFacts kDoor{"tiny", {"alias"}};

TEST(ModelsRoute, ListsTheModelAndItsAliases) {
  v1::ListModelsResponse models;
  v1::Model& model = *models.add_models();
  model.set_name("tiny");
  model.set_context_length(512);
  model.set_vocabulary_size(320);
  model.set_dtype("bf16");
  model.set_layers(4);
  model.set_prefill_workers(2);
  model.set_decode_workers(1);
  const Json json = Json::parse(ModelsJson(models, kDoor, 9));
  Json expected = Json::parse(R"({"id":"tiny","object":"model","created":9,"owned_by":"runahead","root":"tiny",
      "parent":null,"max_model_len":512,"runahead":{"dtype":"bf16","vocabulary_size":320,"layers":4,
      "prefill_workers":2,"decode_workers":1}})");
  EXPECT_EQ(json["object"], "list");
  ASSERT_EQ(json["data"].size(), 2u);
  EXPECT_EQ(json["data"][0], expected);
  expected["id"] = "alias";
  EXPECT_EQ(json["data"][1], expected);
}

std::string Tokenized(const char* body) {
  const absl::StatusOr<v1::TokenizeRequest> request = ReadTokenizeRequest(body, kDoor);
  return request.ok() ? request->ShortDebugString() : std::string(request.status().message());
}

TEST(TokenizeRoute, ReadsAPromptOrAChat) {
  EXPECT_EQ(Tokenized(R"({"prompt":"a","model":"Alias"})"), "text: \"a\"");
  EXPECT_EQ(Tokenized(R"({"prompt":"a","model":"other"})"), "model: \"other\" text: \"a\"");
  EXPECT_EQ(Tokenized(R"({"prompt":"a","add_special_tokens":false})"), "text: \"a\" without_begin: true");
  EXPECT_EQ(Tokenized(R"({"messages":[{"role":"user","content":"a"}],"tools":[{"function":{"name":"f"}}],
                         "add_generation_prompt":true})"),
            "chat { messages { role: \"user\" content: \"a\" } tools: "
            "\"[{\\\"function\\\":{\\\"name\\\":\\\"f\\\"}}]\" add_generation_prompt: true }");
}

TEST(TokenizeRoute, RefusesByName) {
  EXPECT_EQ(Tokenized("{}"), "prompt: it is missing; one of prompt and messages must be given");
  EXPECT_EQ(Tokenized(R"({"prompt":"a","messages":[]})"), "prompt: it does not go with messages");
  EXPECT_EQ(Tokenized(R"({"prompt":["a"]})"), "prompt: it is an array; a string is allowed");
  EXPECT_EQ(Tokenized(R"({"prompt":"a","return_token_strs":true})"),
            "return_token_strs: it is not supported here; leave it out");
  EXPECT_EQ(Tokenized(R"({"messages":[{"role":"user","content":"a"}],"add_special_tokens":true})"),
            "add_special_tokens: special tokens of a chat come from its template; leave it out");
}

TEST(TokenizeRoute, AnswersWithIds) {
  v1::TokenizeResponse response;
  response.add_ids(3);
  response.add_ids(4);
  EXPECT_EQ(TokenizeJson(response, 512), R"({"count":2,"max_model_len":512,"tokens":[3,4]})");
  EXPECT_EQ(TokenizeJson({}, 512), R"({"count":0,"max_model_len":512,"tokens":[]})");
}

TEST(DetokenizeRoute, ReadsIdsAndAnswersWithText) {
  const absl::StatusOr<v1::DetokenizeRequest> request = ReadDetokenizeRequest(R"({"tokens":[3,4]})", kDoor);
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->ShortDebugString(), "ids: 3 ids: 4");
  v1::DetokenizeResponse response;
  response.set_text("a\"b");
  EXPECT_EQ(DetokenizeJson(response), R"({"prompt":"a\"b"})");
}

TEST(DetokenizeRoute, RefusesByName) {
  const auto refusal = [](const char* body) { return ReadDetokenizeRequest(body, kDoor).status(); };
  EXPECT_EQ(refusal("{}").message(), "tokens: it is missing; an array of ids is allowed");
  EXPECT_EQ(refusal(R"({"tokens":[-1]})").message(), "tokens[0]: it is -1; an integer from 0 to 2147483647 is allowed");
  EXPECT_EQ(BlamedField(refusal(R"({"tokens":[true]})")), "tokens[0]");
}

}  // namespace
}  // namespace runahead
