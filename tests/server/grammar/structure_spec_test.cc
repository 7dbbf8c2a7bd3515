#include "server/grammar/structure_spec.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using testing::HasSubstr;

std::string Refused(StructureKind kind, const std::string& text) {
  const absl::Status status = CheckStructure({.kind = kind, .text = text});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(status.message());
}

std::string RefusedSchema(const std::string& text) {
  return Refused(StructureKind::kJsonSchema, text);
}

std::string Schema(const std::string& text) {
  const auto checked = PrepareStructure({.kind = StructureKind::kJsonSchema, .text = text});
  return checked.ok() ? checked->text : std::string(checked.status().message());
}

TEST(StructureSpec, NamesTheKeywordAndItsPlace) {
  EXPECT_EQ(RefusedSchema(R"({"type":"object","properties":{"a":{"type":"array","uniqueItems":true}}})"),
            "structure.json_schema: at /properties/a: the keyword \"uniqueItems\" is not supported");
  EXPECT_EQ(RefusedSchema(R"({"type":"object","properties":{"a/b~":{"not":{}}}})"),
            "structure.json_schema: at /properties/a~1b~0: the keyword \"not\" is not supported");
  EXPECT_EQ(RefusedSchema(R"({"if":{}})"), "structure.json_schema: at the root: the keyword \"if\" is not supported");
}

TEST(StructureSpec, RefusesBoundsThatNoNumberMeets) {
  EXPECT_EQ(RefusedSchema(R"({"type":"object","properties":{"zip":{"type":"integer","minimum":9,"maximum":1}}})"),
            "structure.json_schema: at /properties/zip: no integer is within its bounds");
  for (const char* schema : {
           R"({"type":"integer","exclusiveMinimum":3,"exclusiveMaximum":4})",
           R"({"type":"integer","minimum":3,"exclusiveMaximum":3})",
           R"({"type":"integer","minimum":1,"exclusiveMinimum":5,"maximum":5})",
           R"({"type":"number","minimum":0.5,"maximum":0.25})",
           R"({"type":"number","exclusiveMinimum":0.5,"maximum":0.5})",
           R"({"type":"number","minimum":0.5,"exclusiveMaximum":0.5})",
       }) {
    EXPECT_THAT(RefusedSchema(schema), HasSubstr("is within its bounds")) << schema;
  }
  EXPECT_EQ(RefusedSchema(R"({"type":"integer","multipleOf":7,"minimum":1,"maximum":6})"),
            "structure.json_schema: at /multipleOf: no multiple is within the bounds beside it");
  for (const char* schema : {
           R"({"type":"integer","exclusiveMinimum":3,"exclusiveMaximum":5})",
           R"({"type":"integer","minimum":-4,"maximum":-4})",
           R"({"type":"number","minimum":0.5,"maximum":0.5})",
           R"({"type":"number","minimum":0.5,"exclusiveMinimum":0.25})",
           R"({"type":"integer","multipleOf":7,"minimum":-7,"maximum":-7})",
           R"({"type":"integer","multipleOf":7,"exclusiveMinimum":6,"maximum":13})",
       }) {
    EXPECT_TRUE(PrepareStructure({.kind = StructureKind::kJsonSchema, .text = schema}).ok()) << Schema(schema);
  }
}

// What xgrammar would leave out without a word, or with one on stderr.
TEST(StructureSpec, RefusesWhatWouldNotBeKept) {
  for (const char* schema : {
           R"({"type":"array","contains":{}})",
           R"({"type":"array","items":[{}]})",
           R"({"type":"object","patternProperties":{"a":{}}})",
           R"({"type":"object","propertyNames":{"maxLength":3}})",
           R"({"type":"object","minProperties":1})",
           R"({"type":"object","dependentRequired":{}})",
           R"({"type":"object","unevaluatedProperties":false})",
           R"({"type":"object","required":["a"]})",
           R"({"type":"object","properties":{"a":{}},"additionalProperties":{"type":"string"}})",
           R"({"type":"object","anyOf":[{"type":"null"}]})",
           R"({"type":"object","anyOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":{}}})",
           R"({"type":"object","anyOf":[{"const":1}]})",
           R"({"type":"object","properties":{"a":{}},"anyOf":[{}]})",
           R"({"$ref":"#/$defs/a","type":"string","$defs":{"a":{}}})",
           R"({"allOf":[{"type":"string"},{"minLength":1}]})",
           R"({"oneOf":[{"type":"string"},{"type":"string","minLength":3}]})",
           R"({"oneOf":[{"type":"integer"},{"type":"number"}]})",
           R"({"enum":[1,2],"minimum":2})",
           R"({"enum":[1,"a"],"type":"integer"})",
           R"({"minimum":1,"minLength":2})",
           R"({"type":"string","format":"regex"})",
           R"({"type":"string","format":"date","maxLength":3})",
           R"({"type":"string","pattern":"a","minLength":3})",
           R"({"type":"string","pattern":"(?=a)b"})",
           R"({"type":"string","pattern":"\""})",
           R"({"type":"number","multipleOf":2})",
           R"({"type":"integer","multipleOf":2,"minimum":3})",
           R"({"type":"integer","minimum":1.5})",
           R"({"type":"integer","minimum":1e30})",
           R"({"type":"number","minimum":0.00000001})",
           R"({"$ref":"https://example.com/schema"})",
           R"({"$ref":"#/$defs/missing"})",
           R"({"type":"object","properties":{"a":{"$defs":{}}}})",
           R"({"$id":"a"})",
           R"({"nullable":true})",
       }) {
    EXPECT_THAT(RefusedSchema(schema), HasSubstr("structure.json_schema: at ")) << schema;
  }
}

TEST(StructureSpec, RefusesWhatIsNoSchema) {
  for (const char* schema : {"{",
                             "1",
                             "[]",
                             "\"a\"",
                             "false",
                             R"({"type":"text"})",
                             R"({"type":[]})",
                             R"({"properties":[]})",
                             R"({"properties":{"a":1}})",
                             R"({"required":1})",
                             R"({"items":1})",
                             R"({"enum":[]})",
                             R"({"enum":1})",
                             R"({"anyOf":[]})",
                             R"({"anyOf":{}})",
                             R"({"minLength":-1})",
                             R"({"minLength":1.5})",
                             R"({"minLength":3,"maxLength":2})",
                             R"({"pattern":1})",
                             R"({"format":1})",
                             R"({"$ref":1})",
                             R"({"minItems":2,"items":false})",
                             R"({"prefixItems":[{},{}],"maxItems":1})",
                             "{\"a\xff\":1}"}) {
    RefusedSchema(schema);
  }
}

TEST(StructureSpec, RefusesANameThatIsThereTwice) {
  const std::string told = "structure.json_schema: at ", twice = ": it is given twice";
  EXPECT_EQ(RefusedSchema(R"({"type":"object","properties":{"a":{"const":1},"a":{"const":2}},"required":["a"]})"),
            told + "/properties/a" + twice);
  for (const auto& [schema, place] : std::vector<std::pair<std::string, std::string>>{
           {R"({"type":"string","type":"integer"})", "/type"},
           {R"({"type":"string","\u0074ype":"integer"})", "/type"},
           {R"({"properties":{"a/b~":{},"c":{},"a/b~":{}}})", "/properties/a~1b~0"},
           {R"({"anyOf":[{"type":"null"},{"enum":[[1,{}],{"x":1,"y":[],"x":1}]}]})", "/anyOf/1/enum/1/x"},
           {R"({"prefixItems":[[],{"a":{"b":1}},true,{"title":"","title":""}]})", "/prefixItems/3/title"},
           {R"({"const":{"a":{"b":1,"b":1}}})", "/const/a/b"},
           {R"({"type":"null","default":{"":1,"":2}})", "/default/"},
       }) {
    EXPECT_EQ(RefusedSchema(schema), told + place + twice) << schema;
  }
  // The same name in another object is another.
  EXPECT_EQ(
      Schema(R"({"prefixItems":[{"const":{"a":{"a":1}}},{"const":{"a":[{"a":1},{"a":1}]}}]})"),
      R"({"type":"array","prefixItems":[{"const":{"a":{"a":1}}},{"const":{"a":[{"a":1},{"a":1}]}}],"items":false})");
}

TEST(StructureSpec, IntegersThatAreWrittenAsAnotherNumberAreRefusedByTheirPlace) {
  for (const auto& [schema, place] : std::vector<std::pair<std::string, std::string>>{
           {R"({"const":18446744073709551615})", "/const"},
           {R"({"const":9223372036854775808})", "/const"},
           {R"({"const":-9223372036854775809})", "/const"},
           {R"({"const":1e19})", "/const"},
           {R"({"enum":[1,[],18446744073709551617]})", "/enum/2"},
           {R"({"type":"integer","enum":[18446744073709551615]})", "/enum/0"},
           {R"({"properties":{"a":{"const":{"b":[0,{"c/d":100000000000000000000}]}}}})",
            "/properties/a/const/b/1/c~1d"}}) {
    EXPECT_EQ(RefusedSchema(schema), absl::StrCat("structure.json_schema: at ", place,
                                                  ": integers beyond 64 bits with a sign are not supported here"))
        << schema;
  }
  for (const char* schema : {R"({"const":9223372036854775807})", R"({"enum":[-9223372036854775808,1.5,[1e-300]]})",
                             R"({"const":"18446744073709551615"})", R"({"default":18446744073709551615})"}) {
    EXPECT_TRUE(CheckStructure({.kind = StructureKind::kJsonSchema, .text = schema}).ok()) << schema;
  }
}

TEST(StructureSpec, CountsOfArraysWithinArraysAddUp) {
  const auto nested = [](int count, int arrays) {
    std::string schema = R"({"type":"null"})";
    for (int i = 0; i < arrays; ++i) schema = absl::StrCat(R"({"items":)", schema, R"(,"maxItems":)", count, "}");
    return schema;
  };
  EXPECT_THAT(Schema(nested(1000, 9)), HasSubstr("\"maxItems\":1000"));
  EXPECT_THAT(RefusedSchema(nested(1000, 10)),
              HasSubstr("its schemas, a tenth of its counts of items, and the characters of its patterns and bounded "
                        "texts with their counts written out add up to more than 1000"));
}

TEST(StructureSpec, RefusesSchemasWhoseValuesNeverEnd) {
  for (
      const char* schema : {
          R"({"$ref":"#"})",
          R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}})",
          R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})",
          R"({"type":"object","properties":{"a":{"$ref":"#/$defs/b"}},"$defs":{"b":{"type":"array","items":{"$ref":"#/$defs/b"},"minItems":1}}})",
          R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})",
      }) {
    EXPECT_THAT(RefusedSchema(schema), HasSubstr("refers to itself")) << schema;
  }
  EXPECT_THAT(Schema(R"({"type":"object","properties":{"next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}}})"),
              HasSubstr("anyOf"));
}

TEST(StructureSpec, LeavesNothingOpen) {
  EXPECT_EQ(Schema("{}"), "{}");
  EXPECT_EQ(Schema("true"), "{}");
  EXPECT_EQ(Schema(R"({"title":"A","description":"B","type":"string","default":1,"maximum":3})"),
            R"({"type":"string"})");
  EXPECT_EQ(Schema(R"({"type":"object"})"), R"({"type":"object","additionalProperties":{}})");
  EXPECT_EQ(
      Schema(R"({"properties":{"b":{"type":"null"},"a":true},"required":["a"],"additionalProperties":true})"),
      R"({"type":"object","properties":{"b":{"type":"null"},"a":{}},"required":["a"],"additionalProperties":false})");
  EXPECT_EQ(Schema(R"({"type":"array"})"), R"({"type":"array","items":{}})");
  EXPECT_EQ(Schema(R"({"prefixItems":[{"type":"null"}]})"),
            R"({"type":"array","prefixItems":[{"type":"null"}],"items":false})");
  EXPECT_EQ(Schema(R"({"type":["string","null"],"maxLength":3})"),
            R"({"anyOf":[{"type":"string","maxLength":3},{"type":"null"}]})");
  EXPECT_EQ(
      Schema(R"({"type":["object","number"],"anyOf":[{"required":["a"],"properties":{"a":true}},true,
                       {"type":["integer","string"]},{"enum":[1.5]}]})"),
      R"({"anyOf":[{"anyOf":[{"type":"object","properties":{"a":{}},"required":["a"],"additionalProperties":false},)"
      R"({"type":"number"}]},{"anyOf":[{"type":"object","additionalProperties":{}},{"type":"number"}]},)"
      R"({"type":"integer"},{"enum":[1.5]}]})");
  EXPECT_EQ(Schema(R"({"type":"string","pattern":"^a\\d$"})"), R"({"type":"string","pattern":"a[0-9]"})");
  EXPECT_EQ(Schema(R"({"oneOf":[{"type":"object","properties":{"k":{"const":"a"}},"required":["k"]},
                                {"type":"object","properties":{"k":{"enum":["b","c"]}},"required":["k"]},{"type":"null"}]})")
                .substr(0, 9),
            R"({"anyOf":)");
}

TEST(StructureSpec, BoundsWhatIsCompiled) {
  const std::string deep = std::string(33, '[') + std::string(33, ']');
  EXPECT_THAT(RefusedSchema(R"({"default":)" + deep + "}"), HasSubstr("deeper than 32"));
  EXPECT_THAT(Refused(StructureKind::kRegex, std::string(33, '(') + "a" + std::string(33, ')')),
              HasSubstr("deeper than 32"));
  EXPECT_THAT(Refused(StructureKind::kGrammar, "root ::= " + std::string(33, '(') + "\"a\"" + std::string(33, ')')),
              HasSubstr("deeper than 32"));
  EXPECT_THAT(Refused(StructureKind::kRegex, std::string((64 << 10) + 1, 'a')),
              HasSubstr("65537 bytes are more than 65536"));
  EXPECT_THAT(RefusedSchema(R"({"type":"string","maxLength":1000000})"),
              HasSubstr("/maxLength: this is a number from 0 to "));
  EXPECT_THAT(RefusedSchema(R"({"type":"array","maxItems":1000000})"),
              HasSubstr("/maxItems: this is a number from 0 to "));
  EXPECT_THAT(Refused(StructureKind::kRegex, "a{1000000000000}"), HasSubstr("number is more than "));
  EXPECT_THAT(Refused(StructureKind::kRegex, "((a{100}){100}){100}"), HasSubstr("written out"));
  EXPECT_THAT(Refused(StructureKind::kGrammar, "root ::= ((\"a\"{100}){100}){100}"), HasSubstr("written out"));
  EXPECT_THAT(RefusedSchema(R"({"type":"string","pattern":"((a{100}){100}){100}"})"), HasSubstr("at /pattern: "));
  EXPECT_THAT(Refused(StructureKind::kJsonSchema, ""), HasSubstr("empty"));
}

TEST(StructureSpec, ChecksChoicesAndTags) {
  const auto refused = [](const StructureSpec& spec) { return std::string(CheckStructure(spec).message()); };
  EXPECT_THAT(refused({.kind = StructureKind::kChoice}), HasSubstr("structure.choice: at least one"));
  EXPECT_THAT(refused({.kind = StructureKind::kChoice, .choices = {"a", ""}}), HasSubstr("text 1 is empty"));
  EXPECT_THAT(refused({.kind = StructureKind::kChoice, .choices = {"\xff"}}), HasSubstr("no UTF-8"));
  EXPECT_THAT(refused({.kind = StructureKind::kChoice, .choices = std::vector<std::string>(1025, "a")}),
              HasSubstr("1024"));
  EXPECT_THAT(refused({.kind = StructureKind::kRegex, .text = "a", .before = "b"}), HasSubstr("structure.before"));
  EXPECT_THAT(refused({.kind = StructureKind::kJsonSchema, .text = "{}", .before = std::string(257, 'b')}),
              HasSubstr("256"));
  EXPECT_EQ(refused({.kind = StructureKind::kChoice, .choices = {"a\n\"\\"}}), "");
}

TEST(StructureSpec, ReadsGrammars) {
  const auto checked = [](const std::string& text) {
    return std::string(CheckStructure({.kind = StructureKind::kGrammar, .text = text}).message());
  };
  EXPECT_EQ(checked("root ::= expr (\"=\" expr)*  # a comment\nexpr ::= [0-9]+ | \"(\" expr \")\"\n"), "");
  EXPECT_EQ(checked("root ::= root \"a\" | \"a\""), "") << "left recursion";
  EXPECT_THAT(checked("a ::= \"b\""), HasSubstr("the grammar: there is no such rule"));
  EXPECT_THAT(checked("root ::= \"b\" |\n  c"), HasSubstr("at line 2, c: there is no such rule"));
  EXPECT_THAT(checked("root ::= \"b\" root"), HasSubstr("no text of this ends"));
  EXPECT_THAT(checked("root[max_tokens=3] ::= \"b\""), HasSubstr("options of rules"));
  EXPECT_THAT(checked("root ::= \"b\"\nc [temperature=2] ::= \"b\""), HasSubstr("options of rules"));
  EXPECT_THAT(checked("root ::= Token(1)"), HasSubstr("Token is not supported"));
  EXPECT_THAT(checked("root ::= Regex(\"a\")"), HasSubstr("Regex is not supported"));
  EXPECT_THAT(checked("root ::= \"a\" (=\"b\") \"b\""), HasSubstr("looking ahead"));
  EXPECT_THAT(checked("root ::= \"a"), HasSubstr("a text without its end"));
  EXPECT_THAT(checked("root ::= [a"), HasSubstr("a [ without its ]"));
  EXPECT_THAT(checked("root ::= (\"a\""), HasSubstr("a ( without its )"));
  EXPECT_THAT(checked("root ::= \"a\"{3,2}"), HasSubstr("a repetition is"));
  EXPECT_THAT(checked("root = \"a\""), HasSubstr("::= is missing"));
}

}  // namespace
}  // namespace runahead
