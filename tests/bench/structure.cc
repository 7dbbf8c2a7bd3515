// What forms of answers cost with a model's vocabulary: time and memory to compile, time of a mask. Among them the most
// that is let pass (server/grammar/compile_cost.h).
#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"
#include "server/grammar/grammar_compiler.h"
#include "tests/bench/must.h"
#include "worker/format/open_model.h"

namespace runahead {
namespace {

struct Named {
  const char* name;
  StructureSpec spec;
};

StructureSpec Schema(const std::string& text) {
  return {.kind = StructureKind::kJsonSchema, .text = text};
}
StructureSpec Regex(const std::string& text) {
  return {.kind = StructureKind::kRegex, .text = text};
}
StructureSpec Grammar(const std::string& text) {
  return {.kind = StructureKind::kGrammar, .text = text};
}

std::string Repeated(const std::string& text, int times, const std::string& between = "") {
  std::string all;
  for (int i = 0; i < times; ++i) absl::StrAppend(&all, i == 0 ? "" : between, text);
  return all;
}

std::string ManyProperties(int count, const std::string& schema) {
  std::string properties;
  for (int i = 0; i < count; ++i) absl::StrAppend(&properties, i == 0 ? "" : ",", "\"p", i, "\":", schema);
  return absl::StrCat(R"({"type":"object","properties":{)", properties, "}}");
}

std::vector<Named> Forms() {
  std::vector<Named> forms = {
      {"plain schema",
       Schema(
           R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},"required":["name"]})")},
      {"any object", {.kind = StructureKind::kJsonObject}},
      {"schema with pattern, maxLength, $ref",
       Schema(
           R"({"type":"object","properties":{"id":{"type":"string","pattern":"^[A-Z]{2}[0-9]{4,8}$"},"text":{"type":"string","maxLength":100},
               "next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},"required":["id","text"]})")},
      {"maxLength 1000", Schema(R"({"type":"string","maxLength":1000})")},
      {"minLength 1000", Schema(R"({"type":"string","minLength":1000})")},
      {"20 of maxLength 1000", Schema(ManyProperties(20, R"({"type":"string","maxLength":1000})"))},
      {"pattern .{0,1000}", Schema(R"({"type":"string","pattern":".{0,1000}"})")},
      {"20 patterns .{0,1000}, alike", Schema(ManyProperties(20, R"({"type":"string","pattern":".{0,1000}"})"))},
      {"maxItems 1000", Schema(R"({"type":"array","items":{"type":"string"},"maxItems":1000})")},
      {"items in items, 3 x 32",
       Schema(
           R"({"type":"array","maxItems":32,"items":{"type":"array","maxItems":32,"items":{"type":"array","maxItems":32}}})")},
      {"1000 properties", Schema(ManyProperties(1000, R"({"type":"string"})"))},
      {"2000 optional properties", Schema(ManyProperties(2000, "{}"))},
      {"enum of 1000", Schema(R"({"enum":[)" + Repeated("\"some text\"", 1000, ",") + "]}")},
      {"multipleOf 1023", Schema(R"({"type":"integer","multipleOf":1023})")},
      {"regex .{1000}", Regex(".{1000}")},
      {"regex (.{0,1000}){19}", Regex("(.{0,1000}){19}")},
      {"regex of 20000 characters", Regex(Repeated("a", 20000))},
      {"regex (a|b|..)*(..){1000}", Regex("(a|ab|abc|abcd)*(a|b|c){1000}")},
      {"regex (\\w*){1000}", Regex("(\\w*){1000}")},
      {"regex .*a.{14}", Regex(".*a.{14}")},
      {"regex (.*a.{14}){60}", Regex("(.*a.{14}){60}")},
      {"grammar of 1000 rules", Grammar([] {
         std::string grammar = "root ::= r0\n";
         for (int i = 0; i < 1000; ++i)
           absl::StrAppend(&grammar, "r", i, " ::= \"a\" r", i + 1, " | [b-z]* r", (i * 7) % 1000, "\n");
         return grammar + "r1000 ::= \"x\"\n";
       }())},
      {"grammar ([^]{1000}){19}", Grammar("root ::= ([^]{1000}){19}")},
      {"grammar, counts by rules", Grammar("root ::= a{1000}\na ::= b{1000}\nb ::= c{1000}\nc ::= [^a]{1000}")},
      {"grammar, nested ambiguous", Grammar("root ::= (root root | \"a\")? \"b\"*")},
  };
  std::vector<std::string> choices;
  for (int i = 0; i < 1024; ++i) choices.push_back(absl::StrCat("choice number ", i * 7919 % 1024));
  forms.push_back({"1024 choices", {.kind = StructureKind::kChoice, .choices = choices}});
  return forms;
}

double MillisecondsSince(absl::Time begin) {
  return absl::ToDoubleMilliseconds(absl::Now() - begin);
}

void Measure(GrammarCompiler& compiler, int64_t vocabulary, const Named& form) {
  const absl::Time begin = absl::Now();
  const auto grammar = compiler.Compile(form.spec);
  const double compile_ms = MillisecondsSince(begin);
  if (!grammar.ok()) {
    std::printf("%-40s %9.1f ms  %s\n", form.name, compile_ms,
                std::string(grammar.status().message()).substr(0, 110).c_str());
    return;
  }
  const auto state = GrammarState::Begin(*grammar);
  std::vector<uint32_t> mask((vocabulary + 31) / 32);
  std::vector<double> mask_us;
  std::mt19937 random(1);
  for (int token = 0; token < 200 && !state->Ended(); ++token) {
    const absl::Time from = absl::Now();
    Must(state->FillMask(absl::MakeSpan(mask)));
    mask_us.push_back(1000 * MillisecondsSince(from));
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < vocabulary; ++id) {
      if (mask[id / 32] >> (id % 32) & 1) allowed.push_back(id);
    }
    if (allowed.empty()) break;
    RUNAHEAD_CHECK(state->Accept(allowed[random() % allowed.size()]).ok());
  }
  std::sort(mask_us.begin(), mask_us.end());
  std::printf("%-40s %9.1f ms %9.2f MB  mask %8.1f us, most %8.1f us of %zu\n", form.name, compile_ms,
              static_cast<double>((*grammar)->bytes()) / 1e6, mask_us[mask_us.size() / 2], mask_us.back(),
              mask_us.size());
  std::fflush(stdout);
}

void Run(const std::string& path) {
  const auto file = Must(OpenModelFile(path));
  const auto tokenizer = Must(Tokenizer::FromModel(*file));
  const absl::Time begin = absl::Now();
  const auto compiler = Must(GrammarCompiler::Create(*tokenizer, {.vocabulary_size = tokenizer->vocab_size()}));
  std::printf("vocabulary of %ld tokens: %.1f ms\n", static_cast<long>(tokenizer->vocab_size()),
              MillisecondsSince(begin));
  for (const Named& form : Forms()) Measure(*compiler, tokenizer->vocab_size(), form);
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: structure MODEL\n");
    return 2;
  }
  runahead::Run(argv[1]);
  return 0;
}
