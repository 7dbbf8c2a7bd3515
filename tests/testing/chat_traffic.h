// Chats whose turns begin with the turns before, for simulations: who asks what, and when. The same seed gives the
// same.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace runahead::testing {

struct TrafficShape {
  int chats = 2000;
  int systems = 8;          // system prompts that many chats begin with, each half as often as the one before
  double own_system = 0.5;  // of all chats, the share that begins with one of its own
  int most_turns = 20;      // of a chat; from 1 on, each as likely
  double edit = 0.1;        // of turns, the share that leaves the turns before in the middle
  double again = 0.1;       // that asks the turn before once more
  int system_tokens = 800;  // this and the next two: on average, and from half to half as many again
  int question_tokens = 200;
  int answer_tokens = 150;
  double span_s = 3600;      // chats begin within so long
  double pause_s = 120;      // between an answer and the next turn, on average
  double long_pause = 0.05;  // the share of pauses that are twenty times as long
};

// For one thread at a time.
class ChatTraffic {
 public:
  ChatTraffic(const TrafficShape& shape, uint32_t seed) : shape_(shape) {
    Random random(seed);
    for (int i = 0; i < shape.systems; ++i) systems_.push_back(Text(random, About(random, shape.system_tokens)));
    for (int i = 0; i < shape.chats; ++i) {
      Chat chat{.random = Random(seed + 1 + static_cast<uint32_t>(i))};
      chat.turns = Below(chat.random, shape.most_turns) + 1;
      chat.begins_s = Share(chat.random) * shape.span_s;
      chats_.push_back(std::move(chat));
    }
  }

  int chats() const { return static_cast<int>(chats_.size()); }
  double begins_s(int chat) const { return chats_[chat].begins_s; }

  struct Turn {
    std::vector<int32_t> prompt, answer;
  };
  // The chat's next one.
  Turn Next(int index) {
    Chat& chat = chats_[index];
    Random& random = chat.random;
    if (chat.ids.empty()) Begin(chat);
    --chat.turns;
    const bool later = !chat.questions.empty();
    if (later && Share(random) < shape_.again) {
      chat.ids.resize(chat.questions.back().end);
    } else {
      if (later && Share(random) < shape_.edit) {
        const size_t left = Below(random, static_cast<int>(chat.questions.size()));
        chat.ids.resize(chat.questions[left].begin);
        chat.questions.resize(left);
      }
      const size_t begin = chat.ids.size();
      Append(chat.ids, Text(random, About(random, shape_.question_tokens)));
      chat.questions.push_back({begin, chat.ids.size()});
    }
    Turn turn{chat.ids, Text(random, About(random, shape_.answer_tokens))};
    Append(chat.ids, turn.answer);
    if (chat.turns == 0) chat.ids = {};
    return turn;
  }
  bool GoesOn(int index) const { return chats_[index].turns > 0; }
  // Until the chat's next turn, once it has its answer.
  double PauseS(int index) {
    Random& random = chats_[index].random;
    const double pause = std::exponential_distribution<double>(1 / shape_.pause_s)(random);
    return Share(random) < shape_.long_pause ? 20 * pause : pause;
  }

 private:
  using Random = std::mt19937;
  struct Question {
    size_t begin = 0, end = 0;  // in the chat's ids
  };
  struct Chat {
    Random random;  // its own: what others do changes nothing
    int turns = 0;  // left
    double begins_s = 0;
    std::vector<int32_t> ids = {};
    std::vector<Question> questions = {};
  };

  void Begin(Chat& chat) {
    if (systems_.empty() || Share(chat.random) < shape_.own_system) {
      chat.ids = Text(chat.random, About(chat.random, shape_.system_tokens));
      return;
    }
    size_t system = 0;
    while (system + 1 < systems_.size() && Share(chat.random) < 0.5) ++system;
    chat.ids = systems_[system];
  }
  static double Share(Random& random) { return std::uniform_real_distribution<double>(0, 1)(random); }
  static int Below(Random& random, int count) { return std::uniform_int_distribution<int>(0, count - 1)(random); }
  static int About(Random& random, int tokens) { return tokens / 2 + Below(random, tokens + 1); }
  static std::vector<int32_t> Text(Random& random, int tokens) {
    std::vector<int32_t> ids(tokens);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() >> 1);
    return ids;
  }
  static void Append(std::vector<int32_t>& to, const std::vector<int32_t>& ids) {
    to.insert(to.end(), ids.begin(), ids.end());
  }

  const TrafficShape shape_;
  std::vector<std::vector<int32_t>> systems_;
  std::vector<Chat> chats_;
};

}  // namespace runahead::testing
