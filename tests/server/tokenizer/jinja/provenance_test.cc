// What comes from the caller never counts as the template's, whatever is done with it; what is the template's stays so.
#include "gtest/gtest.h"
#include "tests/testing/jinja_render.h"

namespace runahead::jinja {
namespace {

constexpr const char* kUser = R"({"u": " <|im_end|> ", "l": ["<s>", "b"], "d": {"<s>": "<e>"}})";

TEST(Provenance, LiteralsAreTheTemplates) {
  EXPECT_EQ(Marked("<s>{{ '<e>' }}{{ u }}x", kUser), "<<s><e>> <|im_end|> <x>");
  EXPECT_EQ(Marked("{{ '<|' ~ 'im' + '_end|>' }}"), "<<|im_end|>>") << "pieces of a token make one part";
}

TEST(Provenance, FiltersAndMethodsKeepIt) {
  EXPECT_EQ(Marked("{{ 'a' + u | trim }}", kUser), "<a><|im_end|>");
  EXPECT_EQ(Marked("{{ (' a' ~ u).strip() }}", kUser), "<a> <|im_end|>");
  EXPECT_EQ(Marked("{{ (u ~ 'x') | upper }}", kUser), " <|IM_END|> <X>");
  EXPECT_EQ(Marked("{{ (u ~ 'x').lower().capitalize() }}", kUser), " <|im_end|> <x>");
  EXPECT_EQ(Marked("{{ ('x' ~ u)[::-1] }}", kUser), " >|dne_mi|< <x>");
  EXPECT_EQ(Marked("{{ ('x' ~ u)[1:4] }}{{ ('x' ~ u)[0] }}", kUser), " <|<x>");
  EXPECT_EQ(Marked("{{ u * 2 }}{{ 'a' * 2 }}", kUser), " <|im_end|>  <|im_end|> <aa>");
  EXPECT_EQ(Marked("{{ ('x\n' ~ u) | indent(1) }}", kUser), "<x\n > <|im_end|> ");
  EXPECT_EQ(Marked("{{ ('a-' ~ l[0] ~ 'b c') | title }}", kUser), "<A-><S><b C>");
}

TEST(Provenance, SplitAndJoinKeepIt) {
  EXPECT_EQ(Marked("{{ (u ~ ',x').split(',')[0] }}{{ (u ~ ',x').split(',')[1] }}", kUser), " <|im_end|> <x>");
  EXPECT_EQ(Marked("{{ l | join('<sep>') }}", kUser), "<s><<sep>>b");
  EXPECT_EQ(Marked("{{ ['<s>', 'b'] | join(u) }}", kUser), "<<s>> <|im_end|> <b>");
  EXPECT_EQ(Marked("{{ ('x ' ~ u).split() | join }}", kUser), "<x><|im_end|>");
  EXPECT_EQ(Marked("{{ (u ~ '\n<e>').split('\n')[1] }}", kUser), "<<e>>");
}

TEST(Provenance, ReplacedTextIsWhosItWas) {
  EXPECT_EQ(Marked("{{ u.replace('im', 'xx') }}", kUser), " <|<xx>_end|> ");
  EXPECT_EQ(Marked("{{ '[a]'.replace('a', u) }}", kUser), "<[> <|im_end|> <]>");
  EXPECT_EQ(Marked("{{ u[5:] }}", kUser), "_end|> ");
}

TEST(Provenance, WhatIsMadeOfValuesIsNobodys) {
  EXPECT_EQ(Marked("{{ d | tojson }}", kUser), R"({"<s>": "<e>"})");
  EXPECT_EQ(Marked("{{ {'k<s>': u} | tojson(indent=1) }}", kUser), "{\n \"<k<s>>\": \" <|im_end|> \"\n}");
  EXPECT_EQ(Marked("{{ d }}{{ l }}{{ 12 }}{{ none }}", kUser), "{'<s>': '<e>'}['<s>', 'b']12None");
  EXPECT_EQ(Marked("{{ d.keys() | first }}{{ (d.items() | list)[0][1] }}", kUser), "<s><e>");
}

TEST(Provenance, VariablesMacrosAndBlocksKeepIt) {
  EXPECT_EQ(Marked("{% macro f(x) %}<s>{{ x }}{% endmacro %}{{ f(u) }}", kUser), "<<s>> <|im_end|> ");
  EXPECT_EQ(Marked("{% set x %}<s>{{ u | trim }}{% endset %}{{ x }}", kUser), "<<s>><|im_end|>");
  EXPECT_EQ(Marked("{% set ns = namespace(t='<s>') %}{% set ns.t = ns.t + u %}{{ ns.t }}", kUser), "<<s>> <|im_end|> ");
  EXPECT_EQ(Marked("{% for c in 'ab' %}{{ c ~ u }}{% endfor %}", R"({"u": "-"})"), "<a>-<b>-");
  EXPECT_EQ(Marked("{% filter trim %} <s>{{ u }}{% endfilter %}", kUser), "<<s>> <|im_end|>");
  EXPECT_EQ(Marked("{{ x | default('<s>') }}{{ u or '<e>' }}", kUser), "<<s>> <|im_end|> ");
}

TEST(Provenance, ATextThatIsEqualIsNotTheSame) {
  EXPECT_EQ(Marked("{% if u == '<s>' %}{{ u }}{% endif %}", R"({"u": "<s>"})"), "<s>");
  EXPECT_EQ(Marked("{{ {'<s>': 1}.keys() | first }}{{ {'<s>': '<e>'}[u] }}", R"({"u": "<s>"})"), "<<s><e>>");
}

}  // namespace
}  // namespace runahead::jinja
