// The object of a tool's call, {"name": .., "arguments": {..}}, while it is still being written.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace runahead {

// Whether a call's name, or its arguments, stand below the key. `generic`: as any model writes it.
bool IsCallName(absl::string_view key, bool generic);
bool IsCallArguments(absl::string_view key, bool generic);

// Where the arguments stand behind the name, they can be told before the object ends. Looks at no more than that needs:
// who wants to know whether the object is a call reads it once it is closed, unless it was told as one before.
class ToolCallObject {
 public:
  enum class Part {
    kOther,
    kArgumentsBegin,  // the first bracket of the arguments of a call whose name is known: once at most
    kArguments,       // a character behind that, up to their last bracket
    kClosed           // the object's last bracket
  };

  // Its first bracket has been read. `generic`: it may have the keys of any model (IsCallName, IsCallArguments), and
  // these in a member "function".
  void Begin(bool generic = false) {
    *this = ToolCallObject();
    generic_ = generic;
  }

  // What the next character is. Not called behind kClosed.
  Part Take(char c);

  // Of the call; known from kArgumentsBegin on.
  const std::string& name() const { return name_; }
  // kArgumentsBegin came, and their last bracket has not.
  bool in_arguments() const { return in_arguments_; }

 private:
  // Of the object itself, or of its "function"; not of what else is in it.
  enum class State {
    kKey,     // before a key
    kColon,   // behind a key
    kValue,   // before a value, or in one that is neither text nor object
    kBehind,  // behind a value
    kBroken   // no JSON object: nothing is told of it before its end
  };

  void TakeInString(char c);
  void EndString();
  Part TakeOwn(char c);

  bool generic_ = false;
  State state_ = State::kKey;
  int depth_ = 1;
  int own_depth_ = 1;  // 2 in the member "function"
  bool in_string_ = false;
  bool escaped_ = false;
  bool told_ = false;          // the arguments have begun
  bool in_arguments_ = false;  // and not ended
  std::string literal_;        // of the object's own, with its quotes
  std::string key_;
  std::string name_;
};

}  // namespace runahead
