// Masks of texts whose length is bounded, judged by counting their characters. Some tokens have more characters than
// are written out behind a count (kWrittenOut).
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "server/grammar/grammar_compiler.h"
#include "server/grammar/grammar_work.h"
#include "tests/testing/json_tokenizer.h"

namespace runahead {
namespace {

constexpr int kNoMost = 1 << 30;
constexpr int kCountedAnswers = 6, kCountedTokens = 80;

// `before`, characters but for `"`, `\`, `z` and line breaks, and `behind`, which does not begin with one of those.
struct Counted {
  StructureSpec spec;
  int least = 0, most = 0;
  std::string before, behind;
};

// What is left behind one character; none where there is not one as a whole. The pieces have valid characters of up to
// three bytes, and beginnings of them.
std::optional<absl::string_view> BehindCharacter(absl::string_view text) {
  const unsigned char first = text[0];
  const size_t size = first < 0x80 ? 1 : first < 0xe0 ? 2 : 3;
  if (size > text.size() || (first & 0xc0) == 0x80) return std::nullopt;
  for (size_t i = 1; i < size; ++i) {
    if ((text[i] & 0xc0) != 0x80) return std::nullopt;
  }
  return text.substr(size);
}

bool BeginsCharacter(absl::string_view text) {
  const unsigned char first = text[0];
  if (first < 0xc0 || text.size() >= (first < 0xe0 ? 2 : 3)) return false;
  return text.size() == 1 || (text[1] & 0xc0) == 0x80;
}

enum class Judged { kNo, kBegin, kWhole };

Judged Judge(const Counted& form, absl::string_view text) {
  if (text.size() < form.before.size()) return absl::StartsWith(form.before, text) ? Judged::kBegin : Judged::kNo;
  if (!absl::StartsWith(text, form.before)) return Judged::kNo;
  text.remove_prefix(form.before.size());
  int count = 0;
  while (!text.empty() && !absl::StrContains("\"\\z\n", text[0])) {
    if (++count > form.most) return Judged::kNo;
    const auto rest = BehindCharacter(text);
    if (!rest.has_value()) return BeginsCharacter(text) ? Judged::kBegin : Judged::kNo;
    text = *rest;
  }
  if (count < form.least) return text.empty() ? Judged::kBegin : Judged::kNo;
  if (text == form.behind) return Judged::kWhole;
  return absl::StartsWith(form.behind, text) ? Judged::kBegin : Judged::kNo;
}

Counted OfRegex(int least, int most, const std::string& behind = "") {
  const std::string counts = least == most     ? absl::StrCat(least)
                             : most == kNoMost ? absl::StrCat(least, ",")
                                               : absl::StrCat(least, ",", most);
  return {{.kind = StructureKind::kRegex, .text = absl::StrCat("[^\"\\\\z\\n]{", counts, "}", behind)},
          least,
          most,
          "",
          behind};
}

Counted OfPattern(int least, int most) {
  return {{.kind = StructureKind::kJsonSchema,
           .text = absl::StrCat(R"({"type":"string","pattern":"^[^\"\\\\z\\n]{)", least, ",", most, R"(}$"})")},
          least,
          most,
          "\"",
          "\""};
}

Counted OfGrammar(int least, int most) {
  return {{.kind = StructureKind::kGrammar,
           .text = absl::StrCat("root ::= \"<\" [^\"\\\\z\\n]{", least, ",", most, "} \"z>\"")},
          least,
          most,
          "<",
          "z>"};
}

// The pieces of these have no `z` and no line break but at their ends, where JSON allows neither.
Counted OfLength(int least, int most) {
  return {{.kind = StructureKind::kJsonSchema,
           .text = absl::StrCat(R"({"type":"string","minLength":)", least, R"(,"maxLength":)", most, "}")},
          least,
          most,
          "\"",
          "\""};
}

std::vector<Counted> CountedForms() {
  std::vector<Counted> forms;
  for (const int count : {kWrittenOut - 1, kWrittenOut, kWrittenOut + 1, 2 * kWrittenOut, 60, 128, 129, 200}) {
    forms.push_back(OfRegex(count, count, "z"));
    forms.push_back(OfGrammar(count, count));
    forms.push_back(OfLength(count, count));
  }
  const int least[] = {0, 1, kWrittenOut - 1, kWrittenOut, kWrittenOut + 1, 127, 128, 150};
  for (const int from : least) {
    for (const int to : {150, 160}) {
      forms.push_back(OfRegex(from, to));
      forms.push_back(OfPattern(from, to));
      forms.push_back(OfGrammar(from, to));
      forms.push_back(OfLength(from, to));
    }
  }
  for (const int from : {kWrittenOut, 128, 129, 200}) forms.push_back(OfRegex(from, kNoMost, "zz"));
  return forms;
}

std::vector<std::string> CountedPieces() {
  std::vector<std::string> pieces = {"\"",       "a\"",          "\"a",   "z",    "zz",   "az",    "z>",
                                     "<",        "<a",           "a\n",   "\xc3", "\xa9", "a\xc3", "\xa9\xc3\xa9",
                                     "\xe2\x82", "\xe2\x82\xac", "ab\xe2"};
  const int counts[] = {1, 2, 5, kWrittenOut - 2, kWrittenOut - 1, kWrittenOut, kWrittenOut + 1, kWrittenOut + 2, 50};
  for (const int count : counts) {
    std::string wide;
    for (int i = 0; i < count; ++i) wide += "\xc3\xa9";
    for (const char* const end : {"", "b", "\"", "z", "\xc3"}) {
      pieces.push_back(std::string(count, 'a') + end);
      pieces.push_back(wide + end);
    }
  }
  return pieces;
}

class Counts : public testing::TestWithParam<int> {};

TEST_P(Counts, AreKeptByTokensOfAnyLength) {
  const std::vector<std::string> pieces = CountedPieces();
  const auto tokenizer = MakePieceTokenizer(pieces);
  const int64_t rows = kJsonFirstPiece + static_cast<int64_t>(pieces.size());
  const auto compiler = GrammarCompiler::Create(*tokenizer, {.vocabulary_size = rows});
  ASSERT_TRUE(compiler.ok()) << compiler.status();
  const Counted form = CountedForms()[GetParam()];
  const bool is_length = absl::StrContains(form.spec.text, "minLength");
  const auto grammar = (*compiler)->Compile(form.spec);
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  std::mt19937 random(GetParam());
  std::vector<uint32_t> mask((rows + 31) / 32);
  for (int answer = 0; answer < kCountedAnswers; ++answer) {
    const auto state = (*grammar)->Begin();
    std::string text;
    for (int token = 0; token < kCountedTokens; ++token) {
      ASSERT_TRUE(state->FillMask(absl::MakeSpan(mask)).ok());
      const auto allowed = [&](int32_t id) { return (mask[id / 32] >> (id % 32) & 1) != 0; };
      EXPECT_EQ(allowed(kJsonEnd), Judge(form, text) == Judged::kWhole) << form.spec.text << " behind " << text;
      std::vector<size_t> goes_on;
      for (size_t i = 0; i < pieces.size(); ++i) {
        if (is_length && pieces[i].find_first_of("z\n") != std::string::npos) continue;
        const bool fits = Judge(form, text + pieces[i]) != Judged::kNo;
        ASSERT_EQ(allowed(kJsonFirstPiece + static_cast<int32_t>(i)), fits)
            << form.spec.text << ": " << pieces[i] << " behind " << text;
        if (fits) goes_on.push_back(i);
      }
      if (goes_on.empty()) break;
      // Rather many short ones than few long ones.
      const size_t one = goes_on[random() % goes_on.size()], other = goes_on[random() % goes_on.size()];
      const size_t drawn = pieces[one].size() < pieces[other].size() ? one : other;
      ASSERT_TRUE(state->Accept(kJsonFirstPiece + static_cast<int32_t>(drawn)).ok());
      text += pieces[drawn];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, Counts, testing::Range(0, static_cast<int>(CountedForms().size())));

}  // namespace
}  // namespace runahead
