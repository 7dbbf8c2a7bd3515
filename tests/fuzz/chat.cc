// A chat of a caller, for templates as models have them. Pieces: content, reasoning, tool_calls, tools, variables,
// role.
#include <algorithm>

#include "server/tokenizer/chat_template.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/small_tokenizer.h"

namespace runahead {
namespace {

// Each writes two control tokens a message, of its own.
constexpr char kPlain[] = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
constexpr char kCalls[] =
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{% if m.tool_calls %}{% for c in m.tool_calls %}"
    "{{ c | tojson }}{{ c.function.arguments | string }}{% endfor %}{% endif %}{{ m.content | trim }}"
    "{{ m.reasoning_content }}{{ '<|im_end|>' }}{% endfor %}";
constexpr char kTools[] =
    "{% for m in messages %}<|im_start|>{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}{{ m.role | upper }}"
    "{{ m.content.split('<') | join('<') }}{{ note | default('') }}{{ m | string }}<|im_end|>{% endfor %}";

std::optional<std::string> Given(std::string_view text) {
  return text.empty() ? std::nullopt : std::optional<std::string>(text);
}

}  // namespace

void Fuzz(std::string_view input) {
  const Tokenizer& tokenizer = *fuzz::SmallTokenizer();
  const auto pieces = fuzz::Pieces(input, 6);
  Chat chat;
  chat.messages = {{.role = "user", .content = std::string(pieces[0]), .reasoning_content = Given(pieces[1])},
                   {.role = pieces[5].empty() ? "assistant" : std::string(pieces[5]),
                    .content = std::string(pieces[0]),
                    .tool_calls = Given(pieces[2])}};
  chat.tools = pieces[3];
  chat.variables = pieces[4];
  for (const char* source : {kPlain, kCalls, kTools}) {
    const auto chat_template = ChatTemplate::Parse(source, "", "");
    RUNAHEAD_CHECK(chat_template.ok());
    const auto ids = chat_template->Encode(tokenizer, chat);
    if (!ids.ok()) {
      fuzz::CheckRefusal(ids.status(), "");
      continue;
    }
    // Whatever the caller writes, the control tokens are the template's.
    const auto special = [&tokenizer](int32_t id) { return tokenizer.IsSpecial(id); };
    RUNAHEAD_CHECK(std::count_if(ids->begin(), ids->end(), special) == 4);
  }
}

}  // namespace runahead
