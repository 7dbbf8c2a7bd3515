// Small chats by which is found out, once, what a chat template reads of those that callers give: two of them differ in
// one text alone, and what does not differ then in what is rendered holds nothing of it. That says more than the
// template's source: it holds through names, macros and conditions.
#pragma once

#include <string>

#include "absl/types/span.h"
#include "server/tokenizer/chat.h"
#include "server/tokenizer/chat_values.h"
#include "server/tokenizer/jinja/template.h"

namespace runahead {

// Far above what templates in use take for one of them. One that takes more is not found out about, and each of
// its chats is looked at (lost_input.h).
inline constexpr jinja::Limits kProbeLimits = {.steps = 50'000, .text = size_t{1} << 18, .memory = int64_t{16} << 20};

// Two texts that no template makes the same.
inline constexpr const char* kProbeTexts[] = {"alpha", "omega"};

// What a template may leave out.
struct ChatProbe {
  const char* what;                       // in words, for people
  Chat (*chat)(const std::string& text);  // a chat with this text there
};
absl::Span<const ChatProbe> ChatProbes();

// A role's content is read in parts where nothing of a text is rendered, and something of a text in parts is: so a
// template that takes both is given texts. `tokens`: TemplateTokens.
ContentForms FormsOf(const jinja::Template& chat_template, const ChatVariables& tokens);

}  // namespace runahead
