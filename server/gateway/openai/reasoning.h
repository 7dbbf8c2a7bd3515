// What a model thought before it answered, in the text of its answer: <think>...</think>.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace runahead {

// Takes the text of one answer in pieces, cut anywhere, and tells what was thought from what is said. Blanks at both
// ends of what was thought, and before what is said behind it, are left out.
class ReasoningParser {
 public:
  // `inside`: the prompt ends with <think>, so the answer begins behind it; else it thinks only where it begins with
  // the tag.
  explicit ReasoningParser(bool inside) : state_(inside ? State::kEntering : State::kBegin) {}

  // Adds what is certain now.
  void Feed(absl::string_view text, std::string& reasoning, std::string& content);
  // The answer has ended.
  void Finish(std::string& reasoning, std::string& content);

 private:
  enum class State {
    kBegin,     // of the answer; blanks are held, and a beginning of the tag
    kEntering,  // behind the tag: blanks are left out
    kInside,    // blanks are held, and a beginning of the closing tag
    kLeaving,   // behind that: blanks are left out
    kContent
  };

  void Take(char c, std::string& reasoning, std::string& content);
  void TakeAtBegin(char c, std::string& content);
  void TakeInside(char c, std::string& reasoning);
  void Drop();

  State state_;
  std::string held_;
  size_t matched_ = 0;  // at its end, of a tag
};

}  // namespace runahead
