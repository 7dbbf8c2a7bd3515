// Two conversations with one system prompt, as a user has them who edits, asks again and branches off: a seed gives the
// same turns in every run.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace runahead::testing {

enum class TurnKind {
  kAppend,     // a message more
  kEdit,       // an earlier message is another one from its middle on; what followed stays, and a message more
  kAgain,      // the last answer once more
  kBranch,     // a message behind an earlier answer
  kOther,      // a message more of the other conversation, which goes on from then on
  kFresh,      // a conversation of its own behind the system prompt, in place of the one that goes on
  kOneToken,   // a message more, for an answer of one token
  kCancelled,  // a message more, and the client goes in the middle of the answer
  kNoCache     // a message more that neither takes nor leaves anything
};

inline const char* NameOf(TurnKind kind) {
  switch (kind) {
    case TurnKind::kAppend:
      return "append";
    case TurnKind::kEdit:
      return "edit";
    case TurnKind::kAgain:
      return "again";
    case TurnKind::kBranch:
      return "branch";
    case TurnKind::kOther:
      return "other";
    case TurnKind::kFresh:
      return "fresh";
    case TurnKind::kOneToken:
      return "one token";
    case TurnKind::kCancelled:
      return "cancelled";
    case TurnKind::kNoCache:
      return "no_cache";
  }
  return "";
}

// For one thread.
class Conversation {
 public:
  // `system`: equal ones have equal system prompts, which cross no block of a store; what follows crosses one early.
  Conversation(uint32_t seed, uint32_t system) : random_(system) {
    chats_[0].ids = chats_[1].ids = Ids(kSystem);
    random_.seed(seed);
  }

  // At least ten: three that go on, and then, shuffled, one of each other kind and what goes on behind those.
  std::vector<TurnKind> Turns(int count) {
    std::vector<TurnKind> more = {TurnKind::kEdit,     TurnKind::kAgain,     TurnKind::kBranch, TurnKind::kOther,
                                  TurnKind::kOneToken, TurnKind::kCancelled, TurnKind::kNoCache};
    for (const TurnKind kind : {TurnKind::kEdit, TurnKind::kAgain, TurnKind::kBranch}) {
      if (static_cast<int>(more.size()) + kBegun < count) more.push_back(kind);
    }
    more.resize(count - kBegun, TurnKind::kAppend);
    for (size_t i = more.size() - 1; i > 0; --i) std::swap(more[i], more[random_() % (i + 1)]);
    std::vector<TurnKind> turns(kBegun, TurnKind::kAppend);
    turns.insert(turns.end(), more.begin(), more.end());
    return turns;
  }

  // Behind whatever was before: turns whose known beginnings have positions of prompts alone. A system prompt that is
  // shared, an answer that is made again, an edit in the middle, a branch behind what was a prompt. The answers among
  // these came with later prompts, which were computed from before them on.
  static std::vector<TurnKind> TurnsOfPromptsAlone() {
    return {TurnKind::kFresh, TurnKind::kAgain, TurnKind::kEdit, TurnKind::kBranch};
  }

  // What is asked.
  const std::vector<int32_t>& Ask(TurnKind kind) {
    if (kind == TurnKind::kOther) now_ = 1 - now_;
    Chat& chat = chats_[now_];
    if (kind == TurnKind::kAgain) {
      chat.ids.resize(chat.messages.back().end);
      return chat.ids;
    }
    if (kind == TurnKind::kFresh) {
      chat.ids.resize(kSystem);
      chat.messages.clear();
    }
    if (kind == TurnKind::kEdit && !chat.messages.empty()) Edit(chat);
    if (kind == TurnKind::kBranch && chat.messages.size() > 1) {
      const size_t kept = chat.messages.size() / 2;
      chat.ids.resize(chat.messages[kept].begin);
      chat.messages.resize(kept);
    }
    Append(chat, Ids(20 + static_cast<int>(random_() % 40)));
    return chat.ids;
  }

  // What came.
  void Answer(const std::vector<int32_t>& ids) {
    chats_[now_].ids.insert(chats_[now_].ids.end(), ids.begin(), ids.end());
  }

 private:
  static constexpr int kBegun = 3;     // turns
  static constexpr int kSystem = 200;  // tokens of the system prompt
  struct Message {
    size_t begin, end;  // in its chat's ids; then an answer
  };
  struct Chat {
    std::vector<int32_t> ids;
    std::vector<Message> messages;
  };

  std::vector<int32_t> Ids(int count) {
    std::vector<int32_t> ids(count);
    for (int32_t& id : ids) id = 3 + static_cast<int32_t>(random_() % 300);
    return ids;
  }
  static void Append(Chat& chat, const std::vector<int32_t>& message) {
    chat.messages.push_back({chat.ids.size(), chat.ids.size() + message.size()});
    chat.ids.insert(chat.ids.end(), message.begin(), message.end());
  }
  static void Edit(Chat& chat) {
    const Message& message = chat.messages[chat.messages.size() / 2];
    for (size_t i = (message.begin + message.end) / 2; i < message.end; ++i) chat.ids[i] = chat.ids[i] == 3 ? 4 : 3;
  }

  std::mt19937 random_;
  std::array<Chat, 2> chats_;
  int now_ = 0;
};

}  // namespace runahead::testing
