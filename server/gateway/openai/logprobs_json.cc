#include "server/gateway/openai/logprobs_json.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "server/gateway/openai/json_text.h"

namespace runahead {
namespace {

// JSON has no minus infinity. This is what the field writes for it.
constexpr float kLeastLogprob = -9999;

std::string LogprobText(const v1::TokenLogprob& token) {
  return JsonNumber(std::max(token.logprob(), kLeastLogprob));
}

bool BeginsCharacter(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
}

// {"token","logprob","bytes" without the closing bracket.
std::string OpenToken(const v1::TokenLogprob& token) {
  std::string bytes;
  for (const char byte : BytesOf(token)) AddToJson(bytes, absl::StrCat(static_cast<unsigned char>(byte)));
  return absl::StrCat("{\"token\":", JsonString(token.text()), ",\"logprob\":", LogprobText(token), ",\"bytes\":[",
                      bytes, "]");
}

// The likeliest `most`, in falling order; of equal ones the chosen, which comes first, before others.
std::vector<const v1::TokenLogprob*> LikeliestOf(const v1::TokenLogprobs& logprobs, int most) {
  std::vector<const v1::TokenLogprob*> tops;
  for (const v1::TokenLogprob& top : logprobs.top()) tops.push_back(&top);
  std::stable_sort(tops.begin(), tops.end(),
                   [](const v1::TokenLogprob* a, const v1::TokenLogprob* b) { return a->logprob() > b->logprob(); });
  if (tops.size() > static_cast<size_t>(most)) tops.resize(static_cast<size_t>(most));
  return tops;
}

// {"TOKEN":logprob,...}.
std::string TopsByText(const v1::TokenLogprobs& logprobs, int most) {
  std::string inside;
  std::vector<absl::string_view> written;
  std::vector<const v1::TokenLogprob*> tops = LikeliestOf(logprobs, most);
  tops.push_back(&logprobs.top(0));  // in any case
  for (const v1::TokenLogprob* top : tops) {
    if (std::find(written.begin(), written.end(), top->text()) != written.end()) continue;
    written.push_back(top->text());
    AddToJson(inside, absl::StrCat(JsonString(top->text()), ":", LogprobText(*top)));
  }
  return absl::StrCat("{", inside, "}");
}

// {"ID":{"logprob","rank","decoded_token"},..}.
std::string RankedById(const v1::TokenLogprobs& logprobs, int most) {
  const v1::TokenLogprob* const chosen = &logprobs.top(0);
  const std::vector<const v1::TokenLogprob*> all = LikeliestOf(logprobs, logprobs.top_size());
  std::string first;
  std::string others;
  for (size_t i = 0; i < all.size(); ++i) {
    const bool is_chosen = all[i] == chosen;
    if (!is_chosen && i >= static_cast<size_t>(most)) continue;
    // One that came beside the likeliest that were asked for may have others before it.
    const bool beside = i + 1 == all.size() && all.size() > static_cast<size_t>(std::max(most, 1));
    const std::string rank = is_chosen && beside ? "null" : absl::StrCat(i + 1);
    AddToJson(is_chosen ? first : others,
              absl::StrCat("\"", all[i]->id(), "\":{\"logprob\":", LogprobText(*all[i]), ",\"rank\":", rank,
                           ",\"decoded_token\":", JsonString(all[i]->text()), "}"));
  }
  if (!others.empty()) AddToJson(first, others);
  return absl::StrCat("{", first, "}");
}

}  // namespace

int64_t CountCharacters(absl::string_view text) {
  return std::count_if(text.begin(), text.end(), BeginsCharacter);
}

const std::string& BytesOf(const v1::TokenLogprob& token) {
  return token.bytes().empty() ? token.text() : token.bytes();
}

void ChatLogprobs::Add(const v1::Tokens& tokens) {
  for (const v1::TokenLogprobs& logprobs : tokens.logprobs()) {
    if (logprobs.top().empty()) continue;
    std::string tops;
    for (const v1::TokenLogprob* top : LikeliestOf(logprobs, top_)) AddToJson(tops, absl::StrCat(OpenToken(*top), "}"));
    AddToJson(content_, absl::StrCat(OpenToken(logprobs.top(0)), ",\"top_logprobs\":[", tops, "]}"));
  }
}

std::string ChatLogprobs::Take() {
  if (content_.empty()) return "null";
  return absl::StrCat("{\"content\":[", std::exchange(content_, ""), "],\"refusal\":null}");
}

void CompletionLogprobs::Add(const v1::Tokens& tokens) {
  for (const v1::TokenLogprobs& logprobs : tokens.logprobs()) {
    if (!logprobs.top().empty()) AddScored(logprobs, BytesOf(logprobs.top(0)));
  }
}

// `bytes`: of the token, those that are of the text.
void CompletionLogprobs::AddScored(const v1::TokenLogprobs& logprobs, absl::string_view bytes) {
  AddToJson(tokens_, JsonString(logprobs.top(0).text()));
  AddToJson(logprobs_, LogprobText(logprobs.top(0)));
  AddToJson(tops_, TopsByText(logprobs, top_));
  AddOffset(bytes);
}

void CompletionLogprobs::AddPrompt(const v1::PromptLogprobs& prompt, std::optional<absl::string_view> text) {
  for (int i = 0; i < prompt.logprobs_size(); ++i) {
    const v1::TokenLogprobs& logprobs = prompt.logprobs(i);
    if (logprobs.top().empty()) continue;
    const bool first = prompt.index() + i == 0;
    absl::string_view bytes = BytesOf(logprobs.top(0));
    if (text.has_value() && !begun_) {
      if (!absl::StartsWith(*text, bytes)) absl::ConsumePrefix(&bytes, " ");
      if (first && !absl::StartsWith(*text, bytes)) bytes = "";
      begun_ = !first || !bytes.empty();
    }
    if (!first) {
      AddScored(logprobs, bytes);
      continue;
    }
    AddToJson(tokens_, JsonString(logprobs.top(0).text()));
    AddToJson(logprobs_, "null");
    AddToJson(tops_, "null");
    AddOffset(bytes);
  }
}

// A token that goes on with a character stands where that began.
void CompletionLogprobs::AddOffset(absl::string_view bytes) {
  const bool goes_on = !bytes.empty() && !BeginsCharacter(bytes[0]) && characters_ > 0;
  AddToJson(offsets_, absl::StrCat(characters_ - (goes_on ? 1 : 0)));
  characters_ += CountCharacters(bytes);
}

void PromptLogprobsList::Add(const v1::PromptLogprobs& prompt) {
  for (int i = 0; i < prompt.logprobs_size(); ++i) {
    const v1::TokenLogprobs& logprobs = prompt.logprobs(i);
    const bool scored = prompt.index() + i > 0 && !logprobs.top().empty();
    AddToJson(tokens_, scored ? RankedById(logprobs, top_) : "null");
  }
}

std::string PromptLogprobsList::Take() {
  return absl::StrCat("[", std::exchange(tokens_, ""), "]");
}

std::string CompletionLogprobs::Take() {
  if (tokens_.empty()) return "null";
  return absl::StrCat("{\"tokens\":[", std::exchange(tokens_, ""), "],\"token_logprobs\":[",
                      std::exchange(logprobs_, ""), "],\"top_logprobs\":[", std::exchange(tops_, ""),
                      "],\"text_offset\":[", std::exchange(offsets_, ""), "]}");
}

}  // namespace runahead
