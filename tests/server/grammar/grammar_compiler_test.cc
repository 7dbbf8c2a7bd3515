#include "server/grammar/grammar_compiler.h"

#include <algorithm>
#include <memory>
#include <random>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/json_tokenizer.h"

namespace runahead {
namespace {

using testing::HasSubstr;

constexpr int64_t kHeadRows = 320;  // more than the tokenizer has, and no multiple of 32 less one

const Tokenizer& JsonTokenizer() {
  static const auto& tokenizer = *new std::shared_ptr<const Tokenizer>(MakeJsonTokenizer());
  return *tokenizer;
}

std::unique_ptr<GrammarCompiler> MakeCompiler(size_t cache_bytes = 1 << 20) {
  auto compiler = GrammarCompiler::Create(JsonTokenizer(), {.vocabulary_size = kHeadRows, .cache_bytes = cache_bytes});
  EXPECT_TRUE(compiler.ok()) << compiler.status();
  return *std::move(compiler);
}

std::unique_ptr<GrammarState> BeginOf(const StructureSpec& spec) {
  const auto grammar = MakeCompiler()->Compile(spec);
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  return grammar.ok() ? (*grammar)->Begin() : nullptr;
}

// Whether `text`, byte by byte, is a whole text of the form.
bool Accepts(const StructureSpec& spec, const std::string& text) {
  const auto state = BeginOf(spec);
  for (const char c : text) {
    if (!state->Accept(kJsonFirstByte + static_cast<unsigned char>(c)).ok()) return false;
  }
  return state->Complete();
}

std::vector<int32_t> Allowed(GrammarState& state) {
  std::vector<uint32_t> mask((kHeadRows + 31) / 32);
  const auto limits = state.FillMask(absl::MakeSpan(mask));
  EXPECT_TRUE(limits.ok()) << limits.status();
  std::vector<int32_t> allowed;
  for (int32_t id = 0; id < kHeadRows; ++id) {
    if (mask[id / 32] >> (id % 32) & 1) allowed.push_back(id);
  }
  return allowed;
}

StructureSpec Schema(const std::string& text) {
  return {.kind = StructureKind::kJsonSchema, .text = text};
}
StructureSpec Regex(const std::string& text) {
  return {.kind = StructureKind::kRegex, .text = text};
}
StructureSpec Grammar(const std::string& text) {
  return {.kind = StructureKind::kGrammar, .text = text};
}

// Of a and b, with every operator.
std::string RandomRegex(std::mt19937& random, int depth) {
  const auto pick = [&random](std::vector<const char*> of) { return std::string(of[random() % of.size()]); };
  std::string text;
  const int parts = 1 + static_cast<int>(random() % 3);
  for (int part = 0; part < parts; ++part) {
    if (depth > 0 && random() % 2 == 0) {
      text += pick({"(", "(?:"}) + RandomRegex(random, depth - 1);
      if (random() % 3 == 0) text += "|" + (random() % 4 == 0 ? "" : RandomRegex(random, depth - 1));
      text += ")";
    } else {
      text += pick({"a", "b", "[ab]", "[^a]", "ab"});
    }
    text += pick({"", "", "?", "*", "+", "??", "*?", "{2}", "{0,2}", "{1,3}", "{2,}", "{0,}"});
  }
  return text;
}

// By the standard library's matcher.
TEST(GrammarCompiler, ExpressionsMatchAsElsewhere) {
  std::vector<std::string> texts = {""};
  for (size_t i = 0; texts.size() < 255; ++i) {
    texts.push_back(texts[i] + "a");
    texts.push_back(texts[i] + "b");
  }
  const auto compiler = MakeCompiler();
  std::mt19937 random(45);
  for (int run = 0; run < 40; ++run) {
    const std::string regex = RandomRegex(random, 1);
    const std::regex elsewhere(regex);
    const auto grammar = compiler->Compile(Regex(regex));
    if (!grammar.ok()) {  // nothing but the empty text
      EXPECT_FALSE(std::regex_match("a", elsewhere) || std::regex_match("b", elsewhere)) << grammar.status();
      continue;
    }
    for (const std::string& text : texts) {
      const auto state = (*grammar)->Begin();
      const bool taken = std::all_of(text.begin(), text.end(), [&](char c) {
        return state->Accept(kJsonFirstByte + static_cast<unsigned char>(c)).ok();
      });
      ASSERT_EQ(taken && state->Complete(), std::regex_match(text, elsewhere)) << regex << " and '" << text << "'";
    }
  }
}

TEST(GrammarCompiler, KeepsEachForm) {
  EXPECT_TRUE(Accepts(
      Schema(R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"]})"),
      R"({"a": 1, "b": "x"})"));
  EXPECT_TRUE(Accepts({.kind = StructureKind::kJsonObject}, R"({"a": [1, {"b": null}], "c": "\u00e9"})"));
  EXPECT_TRUE(Accepts({.kind = StructureKind::kJsonObject}, "{}"));
  EXPECT_FALSE(Accepts({.kind = StructureKind::kJsonObject}, "[]"));
  EXPECT_TRUE(Accepts(Regex("(ab|c)+\\d{2}"), "abcab12"));
  EXPECT_FALSE(Accepts(Regex("(ab|c)+\\d{2}"), "abcab1"));
  EXPECT_FALSE(Accepts(Regex("a.c"), "a\nc"));
  EXPECT_TRUE(Accepts(Regex("a.c"),
                      "a\xe2\x82\xac"
                      "c"));
  EXPECT_TRUE(Accepts(Regex("[\"\\\\]x\\/"), "\\x/"));
  EXPECT_TRUE(Accepts(Grammar("root ::= \"x\" (\",\" root)?"), "x,x,x"));
  EXPECT_FALSE(Accepts(Grammar("root ::= \"x\" (\",\" root)?"), "x,"));
  const StructureSpec choice = {.kind = StructureKind::kChoice, .choices = {"yes", "no\n\"\\", "yes, sir"}};
  EXPECT_TRUE(Accepts(choice, "yes"));
  EXPECT_TRUE(Accepts(choice, "yes, sir"));
  EXPECT_TRUE(Accepts(choice, "no\n\"\\"));
  EXPECT_FALSE(Accepts(choice, "no"));
}

TEST(GrammarCompiler, CountsFar) {
  const auto quoted = [](int length) { return absl::StrCat("\"", std::string(length, 'a'), "\""); };
  EXPECT_TRUE(Accepts(Regex("(ab?){200}"), std::string(200, 'a')));
  EXPECT_FALSE(Accepts(Regex("(ab?){200}"), std::string(199, 'a')));
  EXPECT_FALSE(Accepts(Regex("a{150,200}"), std::string(201, 'a')));
  EXPECT_FALSE(Accepts(Regex("a{2}|.{150}"), std::string(100, 'a'))) << "an alternative begins where it began";
  EXPECT_TRUE(Accepts(Regex("a{2}|.{150}"), "aa"));
  EXPECT_FALSE(Accepts(Regex("a{150}|(ab){150}"), std::string(149, 'a') + "ab"));
  EXPECT_FALSE(Accepts(Regex("c?(ab?){150}"), "aac" + std::string(148, 'a')));
  EXPECT_TRUE(Accepts(Regex("c?(ab?){150}"), "c" + std::string(150, 'a')));
  for (const char* schema :
       {R"({"type":"string","pattern":"^a{150,200}$"})", R"({"type":"string","minLength":150,"maxLength":200})"}) {
    EXPECT_FALSE(Accepts(Schema(schema), quoted(149))) << schema;
    EXPECT_TRUE(Accepts(Schema(schema), quoted(150))) << schema;
    EXPECT_TRUE(Accepts(Schema(schema), quoted(200))) << schema;
    EXPECT_FALSE(Accepts(Schema(schema), quoted(201))) << schema;
  }
}

TEST(GrammarCompiler, WritesTagsAroundJson) {
  StructureSpec spec = Schema(R"({"type":"array","items":{"type":"null"}})");
  spec.before = "<call>\n";
  spec.behind = "\n</call>";
  EXPECT_TRUE(Accepts(spec, "<call>\n[null]\n</call>"));
  EXPECT_FALSE(Accepts(spec, "[null]"));
}

TEST(GrammarCompiler, NeverAllowsWhatIsNoText) {
  const auto state = BeginOf(Regex("[^]*"));
  for (const int32_t id : Allowed(*state)) {
    EXPECT_NE(id, kJsonControl);
    EXPECT_NE(id, kJsonUnused);
    EXPECT_LT(id, JsonTokenizer().vocab_size());
  }
  for (const int32_t id : {kJsonControl, kJsonUnused, int32_t{-1}, static_cast<int32_t>(JsonTokenizer().vocab_size()),
                           static_cast<int32_t>(kHeadRows), 1 << 30}) {
    EXPECT_EQ(state->Accept(id).code(), absl::StatusCode::kInvalidArgument) << id;
  }
}

TEST(GrammarCompiler, EndsOnlyWhatIsWhole) {
  const auto state = BeginOf(Regex("ab?"));
  EXPECT_FALSE(state->Complete());
  EXPECT_FALSE(state->Accept(kJsonEnd).ok());
  ASSERT_TRUE(state->Accept(kJsonFirstByte + 'a').ok());
  EXPECT_TRUE(state->Complete());
  EXPECT_EQ(Allowed(*state), (std::vector<int32_t>{kJsonEnd, kJsonFirstByte + 'b'}));
  ASSERT_TRUE(state->Accept(kJsonEnd).ok());
  EXPECT_TRUE(state->Ended());
  EXPECT_TRUE(Allowed(*state).empty());
  EXPECT_FALSE(state->Accept(kJsonFirstByte + 'b').ok());
}

// A token is allowed where, and only where, the answer could go on with it.
TEST(GrammarCompiler, MasksSayWhatIsAccepted) {
  for (const auto& [spec, begin] : std::vector<std::pair<StructureSpec, std::string>>{
           {Schema(R"({"type":"object","properties":{"name":{"type":"string","maxLength":4},"n":{"type":"integer"}}})"),
            R"({"name": "a)"},
           {Schema(R"({"type":"array","items":{"type":"string","pattern":"(ab|12)*"}})"), R"(["ab)"},
           {{.kind = StructureKind::kJsonObject}, R"({"a": )"},
           {Regex("\\w+( a|, )*"), "ab"},
           {Grammar("root ::= [^\"]* \"\\\"\""), "x"},
       }) {
    const auto state = BeginOf(spec);
    for (size_t i = 0; i <= begin.size(); ++i) {
      std::vector<int32_t> accepted;
      for (int32_t id = 0; id < kHeadRows; ++id) {
        if (state->Copy()->Accept(id).ok()) accepted.push_back(id);
      }
      EXPECT_EQ(Allowed(*state), accepted) << spec.text << " behind " << begin.substr(0, i);
      if (i == begin.size()) break;
      ASSERT_TRUE(state->Accept(kJsonFirstByte + static_cast<unsigned char>(begin[i])).ok());
    }
  }
}

TEST(GrammarCompiler, KeepsControlCharactersOutOfJson) {
  const StructureSpec spec = Schema(R"({"type":"string","maxLength":4})");
  EXPECT_TRUE(Accepts(spec, "\"abc\""));
  EXPECT_FALSE(Accepts(spec, "\"abcde\""));
  EXPECT_FALSE(Accepts(spec, "\"a\tb\""));
  EXPECT_FALSE(Accepts(spec, "\"a\nb\""));
}

TEST(GrammarCompiler, RefusesWithoutEndingTheProcess) {
  const auto compiler = MakeCompiler();
  for (const StructureSpec& spec : {
           Schema("{"),
           Schema(R"({"type":"object","properties":{"a":{"minContains":3}}})"),
           Regex("(a"),
           Regex("a{2}{3}"),
           Grammar("root"),
           Grammar("root ::= a"),
           Grammar("root ::= \"\\q\""),
           Grammar("root ::= [b-a]"),
           Grammar("root ::= \"a\" root ::= \"b\""),
           Grammar("root ::= \"\xff\""),
           Grammar(std::string("root ::= \"a\0\"", 13)),
           Grammar("root ::= [\\d]"),
           Grammar(std::string(60000, '(')),
           Grammar("root ::= \"a\"\nroot ::= \"b\""),
       }) {
    const auto grammar = compiler->Compile(spec);
    EXPECT_EQ(grammar.status().code(), absl::StatusCode::kInvalidArgument) << spec.text.substr(0, 100);
    EXPECT_THAT(std::string(grammar.status().message()), HasSubstr("structure."));
  }
}

TEST(GrammarCompiler, CompilesOnceWhatIsAskedForTwice) {
  const auto compiler = MakeCompiler();
  std::vector<std::shared_ptr<const CompiledGrammar>> grammars(8);
  std::vector<std::thread> threads;
  for (auto& grammar : grammars) {
    threads.emplace_back([&] { grammar = *compiler->Compile(Schema(R"({"type":"string","maxLength":100})")); });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& grammar : grammars) EXPECT_EQ(grammar, grammars[0]);
  EXPECT_GT(grammars[0]->bytes(), 0);
  EXPECT_NE(*compiler->Compile(Schema(R"({"type":"string","maxLength":99})")), grammars[0]);
}

TEST(GrammarCompiler, ForgetsTheOldestBeyondItsBytes) {
  const auto compiler = MakeCompiler(/*cache_bytes=*/1);
  const auto first = *compiler->Compile(Regex("a+"));
  EXPECT_NE(*compiler->Compile(Regex("a+")), first);
  const auto state = first->Begin();
  EXPECT_TRUE(state->Accept(kJsonFirstByte + 'a').ok()) << "what is in use stays";
}

TEST(GrammarCompiler, AFormThatTakesTooMuchWorkIsRefused) {
  const auto of_little =
      *GrammarCompiler::Create(JsonTokenizer(), {.vocabulary_size = kHeadRows, .compile_work = 10'000});
  const absl::Status status = of_little->Compile(Schema(R"({"type":"string","maxLength":1000})")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("structure.json_schema: it takes too much work to compile"));
  EXPECT_EQ(of_little->Compile(Schema(R"({"type":"string","maxLength":1000})")).status(), status) << "it is kept";
  EXPECT_TRUE(of_little->Compile(Regex("a+")).ok()) << "others are compiled";
  EXPECT_TRUE(MakeCompiler()->Compile(Schema(R"({"type":"string","maxLength":1000})")).ok());
}

TEST(GrammarCompiler, AFormThatTakesTooMuchMemoryIsRefused) {
  const auto of_little =
      *GrammarCompiler::Create(JsonTokenizer(), {.vocabulary_size = kHeadRows, .form_bytes = size_t{1} << 20});
  const absl::Status status = of_little->Compile(Schema("{\"const\":\"" + std::string(30'000, 'a') + "\"}")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("MiB of memory, more than 1; smaller counts"));
  EXPECT_TRUE(of_little->Compile(Regex("a+")).ok()) << "others are compiled";
}

// By steps, not by time: already before the first answer, and on every machine.
TEST(GrammarCompiler, AFormSaysThatItsMasksTakeLong) {
  const auto compiler = *GrammarCompiler::Create(JsonTokenizer(), {.vocabulary_size = kHeadRows, .long_work = 200});
  EXPECT_FALSE((*compiler->Compile(Regex("(yes|no)!")))->takes_long());
  EXPECT_TRUE((*compiler->Compile(Regex("(.b?){200}")))->takes_long()) << "the first one does";
  const auto nothing_ahead =
      *GrammarCompiler::Create(JsonTokenizer(), {.vocabulary_size = kHeadRows, .ahead_work = 10});
  EXPECT_TRUE((*nothing_ahead->Compile(Regex("(yes|no)!")))->takes_long()) << "masks are left for later";
  const auto grammar = *compiler->Compile(Regex("a(.b?){200}"));
  EXPECT_FALSE(grammar->takes_long()) << "the first one does not";
  const auto state = grammar->Begin();
  ASSERT_TRUE(state->Accept(kJsonFirstByte + 'a').ok());
  Allowed(*state);
  EXPECT_TRUE(grammar->takes_long());
}

// Parts that may be left out make each byte of each token look at all of them.
TEST(GrammarCompiler, AFormWhoseTextsNobodyCouldBeginIsRefused) {
  const auto of_little = *GrammarCompiler::Create(JsonTokenizer(), {.vocabulary_size = kHeadRows, .token_work = 1000});
  const absl::Status status = of_little->Compile(Regex("([^b]?[^c]?){200}")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("structure.regex: how a text of it begins takes too much work"));
}

TEST(GrammarCompiler, ATokenThatTakesTooMuchWorkEndsTheState) {
  const auto compiler = *GrammarCompiler::Create(JsonTokenizer(), {.vocabulary_size = kHeadRows, .token_work = 1000});
  const auto grammar = compiler->Compile(Grammar("root ::= \"a\" ([^b]? [^c]?){200}"));
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  const auto state = (*grammar)->Begin();
  std::vector<uint32_t> mask((kHeadRows + 31) / 32);
  EXPECT_TRUE(state->FillMask(absl::MakeSpan(mask)).ok());
  absl::Status ended = state->Accept(kJsonFirstByte + 'a');
  if (ended.ok()) ended = state->FillMask(absl::MakeSpan(mask)).status();
  EXPECT_EQ(ended.code(), absl::StatusCode::kOutOfRange) << ended;
  EXPECT_EQ(state->Accept(kJsonFirstByte + 'x'), ended);
  EXPECT_EQ(state->FillMask(absl::MakeSpan(mask)).status(), ended);
}

TEST(GrammarCompiler, StatesFollowFromTheirIds) {
  const auto compiler = MakeCompiler();
  const auto grammar = *compiler->Compile({.kind = StructureKind::kJsonObject});
  const auto state = grammar->Begin();
  std::vector<int32_t> ids;
  for (const char c : std::string(R"({"a": [1, 2, {"b)")) {
    ids.push_back(kJsonFirstByte + static_cast<unsigned char>(c));
    ASSERT_TRUE(state->Accept(ids.back()).ok());
    const auto again = grammar->Begin();
    for (const int32_t id : ids) ASSERT_TRUE(again->Accept(id).ok());
    EXPECT_EQ(Allowed(*again), Allowed(*state));
  }
}

}  // namespace
}  // namespace runahead
