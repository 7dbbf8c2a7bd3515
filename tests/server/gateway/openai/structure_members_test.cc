#include "server/gateway/openai/structure_members.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

absl::StatusOr<v1::GenerateRequest> ReadForm(const std::string& members) {
  const std::string text = absl::StrCat("{", members, "}");
  absl::StatusOr<JsonObject> body = JsonObject::ReadBody(text);
  if (!body.ok()) return body.status();
  v1::GenerateRequest request;
  const absl::Status status = ReadStructureMembers(*body, request).status();
  if (!status.ok()) return status;
  EXPECT_TRUE(body->Unread().empty()) << members;
  return request;
}

v1::Structure FormOf(const std::string& members) {
  const auto request = ReadForm(members);
  EXPECT_TRUE(request.ok()) << request.status() << " of " << members;
  return request.ok() ? request->structure() : v1::Structure();
}

TEST(StructureMembers, SaysWhichMemberAsks) {
  for (const auto& [members, asks] : std::vector<std::pair<std::string, std::string>>{
           {R"("a":1)", ""},
           {R"("response_format":{"type":"text"})", ""},
           {R"("response_format":{"type":"json_object"})", "response_format"},
           {R"("response_format":{"type":"json_schema","json_schema":{"schema":{}}})",
            "response_format.json_schema.schema"},
           {R"("structured_outputs":{"regex":"a"})", "structured_outputs.regex"},
           {R"("guided_choice":["a"])", "guided_choice"}}) {
    const std::string text = absl::StrCat("{", members, "}");
    absl::StatusOr<JsonObject> body = JsonObject::ReadBody(text);
    ASSERT_TRUE(body.ok()) << body.status();
    v1::GenerateRequest request;
    const absl::StatusOr<std::string> asked = ReadStructureMembers(*body, request);
    ASSERT_TRUE(asked.ok()) << asked.status();
    EXPECT_EQ(*asked, asks) << members;
  }
}

TEST(StructureMembers, ReadsAllWaysOfTheField) {
  const std::string schema = R"({"b": 1, "a":[ ]})";
  for (const std::string& members : std::vector<std::string>{
           absl::StrCat(R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":)",
                        schema, "}}"),
           absl::StrCat(R"("structured_outputs":{"json":)", schema, "}"),
           absl::StrCat(R"("guided_json":)", schema),
           R"("guided_json":"{\"b\": 1, \"a\":[ ]}")",
       }) {
    EXPECT_EQ(FormOf(members).json_schema(), schema) << members;
  }
  for (const char* members : {R"("response_format":{"type":"json_object"})",
                              R"("structured_outputs":{"json_object":true})", R"("guided_json_object":true)"}) {
    EXPECT_TRUE(FormOf(members).json_object()) << members;
  }
  EXPECT_EQ(FormOf(R"("guided_regex":"a+")").regex(), "a+");
  EXPECT_EQ(FormOf(R"("structured_outputs":{"regex":"a+"})").regex(), "a+");
  EXPECT_EQ(FormOf(R"("guided_grammar":"root")").grammar(), "root");
  EXPECT_EQ(FormOf(R"("structured_outputs":{"grammar":"root","disable_fallback":true})").grammar(), "root");
  EXPECT_EQ(FormOf(R"("guided_choice":["a","b"])").choice().texts_size(), 2);
  EXPECT_EQ(FormOf(R"("structured_outputs":{"choice":["a"]})").choice().texts(0), "a");
}

TEST(StructureMembers, WhatAsksForNothingPasses) {
  for (const char* members :
       {"", R"("response_format":{"type":"text"})", R"("response_format":null)", R"("structured_outputs":{})",
        R"("structured_outputs":{"json":null,"structural_tag":null})", R"("guided_json":null)",
        R"("guided_json_object":false)"}) {
    const auto request = ReadForm(members);
    ASSERT_TRUE(request.ok()) << request.status() << " of " << members;
    EXPECT_FALSE(request->has_structure()) << members;
  }
}

TEST(StructureMembers, RefusesByName) {
  const auto blamed = [](const std::string& members) { return BlamedField(ReadForm(members).status()).value_or(""); };
  EXPECT_EQ(blamed(R"("response_format":"text")"), "response_format");
  EXPECT_EQ(blamed(R"("response_format":{})"), "response_format.type");
  EXPECT_EQ(blamed(R"("response_format":{"type":"structural_tag"})"), "response_format.type");
  EXPECT_EQ(blamed(R"("response_format":{"type":"json_schema"})"), "response_format.json_schema");
  EXPECT_EQ(blamed(R"("response_format":{"type":"json_schema","json_schema":{"name":"n"}})"),
            "response_format.json_schema.schema");
  EXPECT_EQ(blamed(R"("structured_outputs":{"structural_tag":"x"})"), "structured_outputs.structural_tag");
  EXPECT_EQ(blamed(R"("structured_outputs":{"regex":1})"), "structured_outputs.regex");
  EXPECT_EQ(blamed(R"("guided_choice":"a")"), "guided_choice");
  EXPECT_EQ(blamed(R"("guided_choice":["a",1])"), "guided_choice[1]");
  EXPECT_EQ(blamed(R"("guided_regex":"a","guided_json":{})"), "guided_regex");
  EXPECT_EQ(blamed(R"("response_format":{"type":"json_object"},"structured_outputs":{"regex":"a"})"),
            "structured_outputs.regex");
}

}  // namespace
}  // namespace runahead
