#include "server/tokenizer/lost_input.h"

#include <string.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "server/tokenizer/python.h"
#include "server/tokenizer/unicode.h"

namespace runahead {
namespace {

using Render = absl::FunctionRef<absl::StatusOr<MarkedText>(const Chat&)>;

// Of system messages that are not found in their order, so many are looked for in the whole text, and by rendering.
constexpr int kMostSought = 16;

MarkedText Stripped(const ChatMessage& said) {
  return Strip(FromUtf8(said.content, /*own=*/false), nullptr, /*left=*/true, /*right=*/true);
}

// Finds contents that stand in a text in their order: all of them take time linear in the text.
class InOrder {
 public:
  explicit InOrder(const MarkedText& text) {
    for (const char32_t c : text) {
      if ((c & kOwn) == 0) {
        AppendCharacter(c, said_);
      } else {
        said_ += '\xff';  // it is in no character
      }
    }
  }
  // Whether `content` stands behind the one that was found last.
  bool Find(const MarkedText& content) {
    const std::string searched = ToUtf8(content);
    const char* const from = said_.data() + found_;
    const void* const at = memmem(from, said_.size() - found_, searched.data(), searched.size());
    if (at == nullptr) return false;
    found_ = static_cast<const char*>(at) - said_.data() + searched.size();
    return true;
  }
  // Whether it stands anywhere; the next one is looked for behind it then. Others may have said what was found before.
  bool FindAgain(const MarkedText& content) {
    const size_t before = std::exchange(found_, 0);
    if (Find(content)) return true;
    found_ = before;
    return false;
  }

 private:
  std::string said_;
  size_t found_ = 0;
};

// Its index, or -1.
int NewestOf(const Chat& chat, std::initializer_list<std::string_view> roles) {
  for (int i = static_cast<int>(chat.messages.size()) - 1; i >= 0; --i) {
    if (std::find(roles.begin(), roles.end(), chat.messages[i].role) != roles.end()) return i;
  }
  return -1;
}

// Whether `text` is what is rendered with `other` in the place of that message's content. A template that refuses it
// has looked at it.
absl::StatusOr<bool> IsTheSame(const Chat& chat, int message, const std::string& other, const MarkedText& text,
                               Render render) {
  Chat changed = chat;
  changed.messages[message].content = other;
  const absl::StatusOr<MarkedText> rendered = render(changed);
  if (absl::IsInvalidArgument(rendered.status())) return false;
  RUNAHEAD_RETURN_IF_ERROR(rendered.status());
  return *rendered == text;
}

absl::StatusOr<bool> IsLost(const Chat& chat, int message, const ContentForms& forms, const MarkedText& text,
                            Render render) {
  const ChatMessage& said = chat.messages[message];
  const MarkedText content = Stripped(said);
  if (content.empty() || (forms.Reads(said.role) && LastPlace(content, text, /*own=*/false))) return false;
  RUNAHEAD_ASSIGN_OR_RETURN(const bool as_empty, IsTheSame(chat, message, "", text, render));
  if (as_empty) return true;
  return IsTheSame(chat, message, content == U"0" ? "1" : "0", text, render);
}

}  // namespace

absl::StatusOr<std::optional<size_t>> LostMessage(const Chat& chat, const ContentForms& forms, bool each_system,
                                                  const MarkedText& text, KeepGoing keep_going, Render render) {
  std::vector<int> newest = {NewestOf(chat, {"user", "tool"})};
  for (const std::string_view role : {"system", "developer"}) {
    if (!forms.Reads(role)) newest.push_back(NewestOf(chat, {role}));
  }
  for (const int message : newest) {
    if (message < 0) continue;
    RUNAHEAD_RETURN_IF_ERROR(keep_going());
    RUNAHEAD_ASSIGN_OR_RETURN(const bool lost, IsLost(chat, message, forms, text, render));
    if (lost) return static_cast<size_t>(message);
  }
  if (!each_system) return std::nullopt;
  InOrder in_order(text);
  int sought = 0;
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    if (chat.messages[i].role != "system") continue;
    const MarkedText content = Stripped(chat.messages[i]);
    if (in_order.Find(content)) continue;
    if (++sought > kMostSought) break;
    RUNAHEAD_RETURN_IF_ERROR(keep_going());
    if (in_order.FindAgain(content)) continue;
    RUNAHEAD_ASSIGN_OR_RETURN(const bool lost, IsLost(chat, static_cast<int>(i), forms, text, render));
    if (lost) return i;
  }
  return std::nullopt;
}

}  // namespace runahead
