// What forms of answers cost with a model's vocabulary: time and memory to compile, time of a mask. Among them the most
// that is let pass (server/grammar/compile_cost.h).
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
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

constexpr int kMostSeconds = 20;

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

std::string ManyProperties(int count, const std::string& schema, const std::string& name = "p") {
  std::string properties;
  for (int i = 0; i < count; ++i) absl::StrAppend(&properties, i == 0 ? "" : ",", "\"", name, i, "\":", schema);
  return absl::StrCat(R"({"type":"object","properties":{)", properties, "}}");
}

std::string Lengths(int count, int first) {
  std::string properties;
  for (int i = 0; i < count; ++i) {
    absl::StrAppend(&properties, i == 0 ? "" : ",", "\"p", i, R"(":{"type":"string","maxLength":)", first + i, "}");
  }
  return absl::StrCat(R"({"type":"object","properties":{)", properties, "}}");
}

std::string Numbers(int count, const std::string& between) {
  std::string all;
  for (int i = 0; i < count; ++i) absl::StrAppend(&all, i == 0 ? "" : between, i);
  return all;
}

std::string ManyRanges(int count) {
  std::string all = "[";
  for (int i = 0; i < count; ++i)
    absl::StrAppend(&all, "\\u", absl::Hex(0x1000 + 3 * i, absl::kZeroPad4), "-\\u",
                    absl::Hex(0x1001 + 3 * i, absl::kZeroPad4));
  return all + "]{100}";
}

std::string ManyRules() {
  std::string grammar = "root ::= r0\n";
  for (int i = 0; i < 400; ++i) {
    absl::StrAppend(&grammar, "r", i, " ::= \"a\" r", i + 1, " | [b-z]* r", (i * 7) % 400, "\n");
  }
  return grammar + "r400 ::= \"x\"\n";
}

std::vector<Named> Forms() {
  std::vector<std::string> choices;
  for (int i = 0; i < 1024; ++i) choices.push_back(absl::StrCat("choice number ", i * 7919 % 1024, Repeated("x", 40)));
  return {
      {"plain schema", Schema(R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},
                              "required":["name"]})")},
      {"any object", {.kind = StructureKind::kJsonObject}},
      {"schema with pattern, maxLength, $ref",
       Schema(R"({"type":"object","properties":{"id":{"type":"string","pattern":"^[A-Z]{2}[0-9]{4,8}$"},
              "text":{"type":"string","maxLength":100},"next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},
              "required":["id","text"]})")},
      {"maxLength 1000", Schema(R"({"type":"string","maxLength":1000})")},
      {"minLength 1000", Schema(R"({"type":"string","minLength":1000})")},
      {"maxLength 999 and 1000", Schema(Lengths(2, 999))},
      {"maxLength 90 to 109", Schema(Lengths(20, 90))},
      {"seven formats", Schema(R"({"type":"array","items":{"anyOf":[{"format":"email"},{"format":"uri"},
                               {"format":"ipv6"},{"format":"date-time"},{"format":"duration"},
                               {"format":"uri-reference"},{"format":"hostname"}]}})")},
      {"pattern .{0,1000}", Schema(R"({"type":"string","pattern":".{0,1000}"})")},
      {"pattern (.{0,1000}){2}", Schema(R"({"type":"string","pattern":"(.{0,999}){2}"})")},
      {"pattern (\\w*){1000}", Schema(R"({"type":"string","pattern":"(\\w*){1000}"})")},
      {"maxItems 1000", Schema(R"({"type":"array","items":{"type":"string"},"maxItems":1000})")},
      {"items in items in items", Schema(R"({"type":"array","maxItems":600,"items":{"type":"array","maxItems":600,
                                         "items":{"type":"array","maxItems":600}}})")},
      {"500 properties", Schema(ManyProperties(500, R"({"type":"string"})"))},
      {"3 x 500 properties", Schema(absl::StrCat(R"({"anyOf":[)", ManyProperties(500, R"({"type":"string"})"), ",",
                                                 ManyProperties(500, R"({"type":"integer"})"), ",",
                                                 ManyProperties(499, R"({"type":"null"})"), "]}"))},
      {"enum of 64 KiB", Schema(R"({"enum":[)" + Repeated("\"some text\"", 5400, ",") + "]}")},
      {"const of 60 KB", Schema(R"({"const":")" + Repeated("a", 60000) + "\"}")},
      {"multipleOf 1023", Schema(R"({"type":"integer","multipleOf":1023})")},
      {"1024 choices of 60", {.kind = StructureKind::kChoice, .choices = choices}},
      {"regex .{1000}", Regex(".{1000}")},
      {"regex .{0,300}", Regex(".{0,300}")},
      {"regex .{100,300}", Regex(".{100,300}")},
      {"regex .{300,}", Regex(".{300,}")},
      {"regex .{100}", Regex(".{100}")},
      {"regex .{0,1000}.{0,999}", Regex(".{0,1000}.{0,999}")},
      {"regex (.{0,100}){20}", Regex("(.{0,100}){20}")},
      {"regex ([a-z]{1,4} ){400}", Regex("([a-z]{1,4} ){400}")},
      {"regex of 2000 characters", Regex(Repeated("a", 2000))},
      {"regex (a|ab|abc|abcd)*(a|b|c){600}", Regex("(a|ab|abc|abcd)*(a|b|c){600}")},
      {"regex (\\w*){1000}", Regex("(\\w*){1000}")},
      {"regex ((((a*)*)*)*){1000}", Regex("((((a*)*)*)*){1000}")},
      {"regex .*a.{14}", Regex(".*a.{14}")},
      {"regex (.*a.{14}){100}", Regex("(.*a.{14}){100}")},
      {"grammar of 400 rules", Grammar(ManyRules())},
      {"grammar ([^]{1000}){2}", Grammar("root ::= ([^]{1000}){2}")},
      {"grammar, counts by rules", Grammar("root ::= a{499}\na ::= b{500}\nb ::= c{500}\nc ::= [^a]{500}")},
      {"any of three lengths", Schema(R"({"anyOf":[{"type":"string","maxLength":1000},{"type":"string","maxLength":999},
                               {"type":"string","maxLength":120}]})")},
      {"900 classes of ranges", Regex(Repeated("[" + Repeated("\u0101-\u0102\u4e01", 4) + "]", 900))},
      {"class of 60 KB", Regex(ManyRanges(4000))},
      {"enum of 11000 numbers", Schema("{\"enum\":[" + Numbers(11000, ",") + "]}")},
      {"grammar of 990 texts", Grammar("root ::= \"" + Numbers(990, "\" | \"") + "\"")},
      {"500 properties, long names", Schema(ManyProperties(500, R"({"type":"null"})", std::string(100, 'n')))},
      {"regex ((a|b)*a(a|b){9}){30}", Regex("((a|b)*a(a|b){9}){30}")},
      {"regex (a?b?c?d?){120}", Regex("(a?b?c?d?){120}")},
      {"regex of nine beginnings", Regex("[^a]{0,50}a|[^b]{0,50}b|[^c]{0,50}c|[^d]{0,50}d|[^e]{0,50}e|[^f]{0,50}f|"
                                         "[^g]{0,50}g|[^h]{0,50}h|[^i]{0,50}i")},
      {"regex ([^b]?[^c]?){250}", Regex("([^b]?[^c]?){250}")},
      {"regex (\\w?.?\\s?){160}", Regex("(\\w?.?\\s?){160}")},
      {"regex (\\w+\\s*){300}", Regex("(\\w+\\s*){300}")},
      {"grammar, ambiguous", Grammar("root ::= (root root | \"a\")? \"b\"*")},
  };
}

// Of this process, at its most.
double PeakMb() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024 / 1e6;
}

double MillisecondsSince(absl::Time begin) {
  return absl::ToDoubleMilliseconds(absl::Now() - begin);
}

// Microseconds of each mask of an answer of up to 200 tokens, the shortest first.
std::vector<double> MaskTimes(const CompiledGrammar& grammar, int64_t vocabulary) {
  const auto state = grammar.Begin();
  std::vector<uint32_t> mask((vocabulary + 31) / 32);
  std::vector<double> times;
  std::mt19937 random(1);
  for (int token = 0; token < 200 && !state->Ended(); ++token) {
    const absl::Time from = absl::Now();
    const absl::Status filled = state->FillMask(absl::MakeSpan(mask)).status();
    if (!filled.ok()) {
      std::printf("  behind %d tokens: %s\n", token, std::string(filled.message()).c_str());
      break;
    }
    times.push_back(1000 * MillisecondsSince(from));
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < vocabulary; ++id) {
      if (mask[id / 32] >> (id % 32) & 1) allowed.push_back(id);
    }
    if (allowed.empty()) break;
    const absl::Status accepted = state->Accept(allowed[random() % allowed.size()]);
    if (!accepted.ok()) {
      std::printf("  token %d: %s\n", token, std::string(accepted.message()).c_str());
      break;
    }
  }
  std::sort(times.begin(), times.end());
  return times;
}

double Sum(const std::vector<double>& of) {
  return std::accumulate(of.begin(), of.end(), 0.0);
}

void Measure(GrammarCompiler& compiler, int64_t vocabulary, const Named& form) {
  const double peak_before = PeakMb();
  const absl::Time begin = absl::Now();
  const auto grammar = compiler.Compile(form.spec);
  const double compile_ms = MillisecondsSince(begin);
  const double peak_mb = PeakMb() - peak_before;  // where it is more than the vocabulary took
  if (!grammar.ok()) {
    std::printf("%-40s %9.1f ms, peak %5.1f MB  %s\n", form.name, compile_ms, peak_mb,
                std::string(grammar.status().message()).substr(0, 110).c_str());
    return;
  }
  // The second answer finds the masks that the first one made.
  const std::vector<double> first = MaskTimes(**grammar, vocabulary), again = MaskTimes(**grammar, vocabulary);
  std::printf("%-40s %9.1f ms, peak %5.1f MB %9.2f MB  mask %8.1f us, most %8.1f us, %zu in %7.1f ms, again %7.1f ms\n",
              form.name, compile_ms, peak_mb, static_cast<double>((*grammar)->bytes()) / 1e6, first[first.size() / 2],
              first.back(), first.size(), Sum(first) / 1000, Sum(again) / 1000);
  std::fflush(stdout);
}

void Run(const std::string& path, const std::string& only) {
  const auto file = Must(OpenModelFile(path));
  const auto tokenizer = Must(Tokenizer::FromModel(*file));
  const absl::Time begin = absl::Now();
  const auto compiler = Must(GrammarCompiler::Create(*tokenizer, {.vocabulary_size = tokenizer->vocab_size()}));
  std::printf("vocabulary of %ld tokens: %.1f ms\n", static_cast<long>(tokenizer->vocab_size()),
              MillisecondsSince(begin));
  for (const Named& form : Forms()) {
    if (std::string(form.name).find(only) == std::string::npos) continue;
    std::fflush(stdout);
    const pid_t child = fork();  // a form that takes too long does not keep others from being measured
    if (child == 0) {
      alarm(kMostSeconds);
      Measure(*compiler, tokenizer->vocab_size(), form);
      std::fflush(stdout);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) std::printf("%-40s more than %d s\n", form.name, kMostSeconds);
  }
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: structure MODEL [PART OF A FORM'S NAME]\n");
    return 2;
  }
  runahead::Run(argv[1], argc > 2 ? argv[2] : "");
  return 0;
}
