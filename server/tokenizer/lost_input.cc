#include "server/tokenizer/lost_input.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status_macros.h"
#include "server/tokenizer/python.h"

namespace runahead {
namespace {

using Render = absl::FunctionRef<absl::StatusOr<MarkedText>(const Chat&)>;

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
  const MarkedText content = Strip(FromUtf8(said.content, /*own=*/false), nullptr, /*left=*/true, /*right=*/true);
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
  for (size_t i = 0; each_system && i < chat.messages.size(); ++i) {
    if (chat.messages[i].role == "system") newest.push_back(static_cast<int>(i));
  }
  for (const int message : newest) {
    if (message < 0) continue;
    RUNAHEAD_RETURN_IF_ERROR(keep_going());
    RUNAHEAD_ASSIGN_OR_RETURN(const bool lost, IsLost(chat, message, forms, text, render));
    if (lost) return static_cast<size_t>(message);
  }
  return std::nullopt;
}

}  // namespace runahead
