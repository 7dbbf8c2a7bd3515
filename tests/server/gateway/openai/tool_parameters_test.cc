#include "server/gateway/openai/tool_parameters.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using OrderedJson = nlohmann::ordered_json;

// The definitions that parameters become, behind the one of arguments; "none" where they allow no object.
std::string Defined(const std::string& parameters) {
  const absl::StatusOr<ToolDefinitions> defined = DefineArguments(parameters, "tool0");
  if (defined.ok()) return absl::StrCat(defined->arguments, " ", defined->definitions);
  EXPECT_EQ(defined.status().message(), "no object is of this schema; arguments are one");
  return "none";
}

// What arguments are held to.
std::string HeldTo(const std::string& parameters) {
  const absl::StatusOr<ToolDefinitions> defined = DefineArguments(parameters, "tool0");
  return defined.ok() ? OrderedJson::parse(defined->definitions)[defined->arguments].dump() : Defined(parameters);
}

TEST(ToolParameters, AreHeldToObjectsByTheirType) {
  const char* const any = R"({"type":"object"})";
  for (const char* parameters : {"true", "{}", any, R"({"type":["object"]})", R"({"type":["null","object"]})"}) {
    EXPECT_EQ(HeldTo(parameters), any) << parameters;
  }
  for (const char* parameters : {"false", R"({"type":"array"})", R"({"type":["string","null"]})"}) {
    EXPECT_EQ(HeldTo(parameters), "none") << parameters;
  }
  EXPECT_EQ(HeldTo(R"({"title":"t","properties":{"a":{"type":"string"}}})"),
            R"({"title":"t","properties":{"a":{"type":"string"}},"type":"object"})");
}

TEST(ToolParameters, OfSeveralFormsThoseStayThatAreObjects) {
  EXPECT_EQ(HeldTo(R"({"const":{"a":1}})"), R"({"const":{"a":1}})");
  EXPECT_EQ(HeldTo(R"({"const":"a"})"), "none");
  EXPECT_EQ(HeldTo(R"({"type":["object","string"],"enum":["a",{"b":1},{}]})"), R"({"enum":[{"b":1},{}]})");
  EXPECT_EQ(HeldTo(R"({"enum":["a",1,[],null]})"), "none");
  EXPECT_EQ(HeldTo(R"({"anyOf":[{"type":"null"},{"properties":{}},true,{"const":1}]})"),
            R"({"anyOf":[{"properties":{},"type":"object"},{"type":"object"}]})");
  EXPECT_EQ(HeldTo(R"({"type":"object","oneOf":[{"type":"string"},{"anyOf":[{"type":["object","null"]},false]}]})"),
            R"({"oneOf":[{"anyOf":[{"type":"object"}]}]})");
  EXPECT_EQ(HeldTo(R"({"anyOf":[{"type":"string"},{"enum":[1]}]})"), "none");
  EXPECT_EQ(HeldTo(R"({"allOf":[{}]})"), R"({"allOf":[{"type":"object"}]})");
  EXPECT_EQ(HeldTo(R"({"allOf":[{},{"type":"string"}]})"), "none");
}

TEST(ToolParameters, BehindAReferenceStandObjects) {
  // What is one already stays under its name.
  EXPECT_EQ(Defined(R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"object"}}})"),
            R"(tool0 {"tool0.a":{"type":"object"},"tool0":{"$ref":"#/$defs/tool0.a"}})");
  // Others may refer to what is not one.
  EXPECT_EQ(Defined(R"({"$ref":"#/$defs/a","$defs":{"a":{"type":["object","string"],"items":{"$ref":"#/$defs/a"}},
                        "a_objects":{"type":"string"}}})"),
            R"(tool0 {"tool0.a":{"type":["object","string"],"items":{"$ref":"#/$defs/tool0.a"}},)"
            R"("tool0.a_objects":{"type":"string"},"tool0":{"$ref":"#/$defs/tool0.a_objects_"},)"
            R"("tool0.a_objects_":{"type":"object","items":{"$ref":"#/$defs/tool0.a"}}})");
  EXPECT_EQ(Defined(R"({"$ref":"#/definitions/a","definitions":{"a":{"type":"string"}}})"), "none");
  EXPECT_EQ(
      Defined(R"({"anyOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"},{"$ref":"#/$defs/a"}],
                  "$defs":{"a":{"type":"string"},"b":{"const":{}}}})"),
      R"(tool0 {"tool0.a":{"type":"string"},"tool0.b":{"const":{}},"tool0":{"anyOf":[{"$ref":"#/$defs/tool0.b"}]}})");
}

TEST(ToolParameters, WhatRefersToTheRootMayBeWhatTheRootMayBe) {
  EXPECT_EQ(Defined(R"({"type":["object","null"],"properties":{"a":{"$ref":"#"}}})"),
            R"(tool0_objects {"tool0":{"type":["object","null"],"properties":{"a":{"$ref":"#/$defs/tool0"}}},)"
            R"("tool0_objects":{"type":"object","properties":{"a":{"$ref":"#/$defs/tool0"}}}})");
  EXPECT_EQ(Defined(R"({"type":"object","properties":{"a":{"items":{"$ref":"#"}}}})"),
            R"(tool0 {"tool0":{"type":"object","properties":{"a":{"items":{"$ref":"#/$defs/tool0"}}}}})");
}

TEST(ToolParameters, ReferencesInACircleEnd) {
  EXPECT_EQ(Defined(R"({"$ref":"#"})"),
            R"(tool0_objects {"tool0":{"$ref":"#/$defs/tool0"},"tool0_objects":{"$ref":"#/$defs/tool0_objects"}})");
  EXPECT_EQ(Defined(R"({"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"},{"type":"string"}]}}})"),
            R"(tool0 {"tool0.a":{"anyOf":[{"$ref":"#/$defs/tool0.a"},{"type":"string"}]},)"
            R"("tool0":{"$ref":"#/$defs/tool0.a_objects"},)"
            R"("tool0.a_objects":{"anyOf":[{"$ref":"#/$defs/tool0.a_objects"}]}})");
}

TEST(ToolParameters, ReferencesInALongRowAreRefused) {
  OrderedJson parameters = {{"$ref", "#/$defs/0"}, {"$defs", OrderedJson::object()}};
  for (int i = 0; i < 5000; ++i) parameters["$defs"][absl::StrCat(i)] = {{"$ref", absl::StrCat("#/$defs/", i + 1)}};
  EXPECT_EQ(DefineArguments(parameters.dump(), "tool0").status().message(),
            "with references, its schemas are nested deeper than 128");
}

TEST(ToolParameters, DefinitionsOfBothKeywordsKeepApart) {
  EXPECT_EQ(Defined(R"({"anyOf":[{"$ref":"#/$defs/definitions.P"},{"$ref":"#/definitions/P"}],
                        "$defs":{"definitions.P":{"const":{"a":1}}},"definitions":{"P":{"const":{"b":2}}}})"),
            R"(tool0 {"tool0.definitions.P":{"const":{"a":1}},"tool0_definitions.P":{"const":{"b":2}},)"
            R"("tool0":{"anyOf":[{"$ref":"#/$defs/tool0.definitions.P"},{"$ref":"#/$defs/tool0_definitions.P"}]}})");
}

TEST(ToolParameters, ADefinitionWhoseNameNoFormCanHaveIsRefused) {
  for (const char* name : {"a/b", "a~b", "a%b"}) {
    EXPECT_EQ(
        DefineArguments(absl::StrCat(R"({"type":"object","$defs":{")", name, R"(":{}}})"), "tool0").status(),
        absl::InvalidArgumentError(absl::StrCat("at /$defs: the name \"", name, "\" with /, ~ or % is not supported")));
  }
  EXPECT_EQ(DefineArguments(R"({"definitions":{"/":true}})", "tool0").status().message(),
            "at /definitions: the name \"/\" with /, ~ or % is not supported");
}

TEST(ToolParameters, ReferencesFollowWhereSchemasStand) {
  const std::string from = R"({"$ref":"#/$defs/a"})", to = R"({"$ref":"#/$defs/tool0.a"})";
  for (const char* around :
       {R"({"type":"object","properties":{"p":@}})", R"({"type":"object","properties":{"const":@,"$ref":@}})",
        R"({"type":"object","additionalProperties":@})", R"({"type":"object","items":@,"prefixItems":[@,@]})",
        R"({"type":"object","properties":{"p":{"items":{"anyOf":[@,{"oneOf":[@,{"allOf":[@]}]}]}}}})"}) {
    const std::string expected = absl::StrReplaceAll(around, {{"@", to}});
    EXPECT_EQ(HeldTo(absl::StrReplaceAll(around, {{"@", from}})), expected);
  }
}

TEST(ToolParameters, ReferencesThatAreValuesOrNamesStay) {
  for (const char* parameters :
       {R"({"type":"object","default":{"$ref":"#"},"examples":[{"$ref":"#/$defs/a"}]})",
        R"({"type":"object","properties":{"p":{"const":{"$ref":"#/$defs/a"}},"q":{"enum":[{"$ref":"#"}]}}})",
        R"({"const":{"$ref":"#"}})", R"({"enum":[{"$ref":"#/definitions/a"}]})",
        R"({"type":"object","properties":{"default":{"default":{"$ref":"#"}}}})",
        R"({"type":"object","properties":{"$ref":{"type":"string"},"enum":true}})"}) {
    EXPECT_EQ(HeldTo(parameters), parameters);
  }
}

// Places of the schema by those of what came: "/$defs/tool0/anyOf 2,5; tool0_objects of tool0".
std::string Places(const std::string& parameters) {
  const absl::StatusOr<ToolDefinitions> defined = DefineArguments(parameters, "tool0");
  EXPECT_TRUE(defined.ok()) << defined.status();
  std::vector<std::string> places;
  for (const auto& [place, kept] : defined->places.kept) {
    places.push_back(absl::StrCat(place, " ", absl::StrJoin(kept, ",")));
  }
  for (const auto& [made, given] : defined->places.made_of) places.push_back(absl::StrCat(made, " of ", given));
  return absl::StrJoin(places, "; ");
}

TEST(ToolParameters, SayWhereWhatStaysStood) {
  EXPECT_EQ(Places(R"({"type":["object","null"]})"), "");
  EXPECT_EQ(Places(R"({"anyOf":[{"type":"object"},true]})"), "");
  EXPECT_EQ(Places(R"({"anyOf":[{"type":"null"},true,false,{"oneOf":[{"const":1},{}]}]})"),
            "/$defs/tool0/anyOf 1,3; /$defs/tool0/anyOf/1/oneOf 1");
  EXPECT_EQ(Places(R"({"anyOf":[{"enum":[1,{}],"anyOf":[false]},{"enum":[{},{"a":1}]}]})"), "/$defs/tool0/anyOf 1");
  EXPECT_EQ(Places(R"({"enum":[1,{},2,{"a":1}]})"), "/$defs/tool0/enum 1,3");
  EXPECT_EQ(Places(R"({"anyOf":[{"type":"null"},{"properties":{"a":{"$ref":"#"}}}]})"),
            "/$defs/tool0_objects/anyOf 1; tool0_objects of tool0");
  EXPECT_EQ(Places(R"({"$ref":"#/$defs/a","$defs":{"a":{"enum":[1,{}]}}})"),
            "/$defs/tool0.a_objects/enum 1; tool0.a_objects of tool0.a");
}

TEST(ToolParameters, WhatIsNoSchemaIsLeftToWhoCompilesIt) {
  for (const char* parameters :
       {R"({"type":[]})", R"({"type":5})", R"({"type":"Object"})", R"({"type":["object","bogus"]})",
        R"({"anyOf":[{"type":["object",null]}]})", R"({"$ref":5})", R"({"$ref":"https://a/b"})", R"({"anyOf":{}})",
        R"({"oneOf":[]})", R"({"anyOf":["a"]})", R"({"type":"object","properties":[{}]})", R"({"enum":"a"})",
        R"({"type":"object","$defs":[]})"}) {
    EXPECT_EQ(HeldTo(parameters), parameters);
  }
}

}  // namespace
}  // namespace runahead
