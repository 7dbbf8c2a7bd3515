// Calls of tools in the text of an answer, as models write them.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/gateway/openai/tool_call_object.h"
#include "server/gateway/openai/tool_format.h"
#include "server/gateway/openai/tool_names.h"

namespace runahead {

// A call, or more of the arguments of the one before.
struct ToolCallPart {
  bool begins = true;
  std::string name;       // of one that begins
  std::string arguments;  // JSON, as the model wrote it
};

// Takes the text of one answer in pieces, cut anywhere, and tells calls from content. A call is told with its name and
// the first bracket of its arguments, where they stand in this order, and its arguments as they come: they may be no
// JSON then, if the model wrote none or the answer was cut off. Any other is told when it is whole: only then is known
// that it is one. What turns out to be none is content, as it was written: also a call of no tool's name that does not
// stand behind `open`, for an answer may be JSON. Blanks beside calls are left out, but for those at the end of
// content.
class ToolCallParser {
 public:
  // `only_first`: what comes behind the first call is left out, whatever it is.
  ToolCallParser(const ToolFormat& format, ToolNames names, bool only_first = false)
      : format_(format), names_(std::move(names)), only_first_(only_first) {}

  // Adds what is certain now to `content` and `calls`; to the last part there, where that is of the same call.
  void Feed(absl::string_view text, std::string& content, std::vector<ToolCallPart>& calls);
  // The answer has ended.
  void Finish(std::string& content);
  // The arguments of the last call that was told have not ended.
  bool in_arguments() const { return told_ && object_.in_arguments(); }

 private:
  enum class State {
    kBetween,  // at the begin, or behind a call, with nothing but blanks since
    kContent,
    kOpened,   // behind `open`, or the first bracket of a list
    kObject,   // in the object of a call
    kListed,   // behind that object, in a list
    kClosing,  // behind that object, or the list
    kPast      // behind the only call
  };

  void Take(char c, std::string& content, std::vector<ToolCallPart>& calls);
  void TakeOutside(char c, std::string& content);
  void TakeOpened(char c, std::string& content);
  void TakeInObject(char c, std::string& content, std::vector<ToolCallPart>& calls);
  void TakeListed(char c, std::string& content);
  void TakeClosing(char c, std::string& content, std::vector<ToolCallPart>& calls);
  void BeginObject();
  bool MayCall(const std::string& name) const;
  void Told();
  void NoCall(std::string& content);
  void EndCall();
  void EndCalls();
  void Release(std::string& content);
  bool IsBlank(char c) const;

  ToolFormat format_;
  ToolNames names_;
  bool only_first_;
  State state_ = State::kBetween;
  bool called_ = false;  // there was a call
  bool in_list_ = false;
  bool marked_ = false;  // `open` came, and nothing since but calls and what stands between them
  std::string held_;     // text that may be, or is, a call or what stands beside it
  size_t matched_ = 0;   // at its end, of `open` or `close`
  // Of the object that is being read.
  size_t object_begin_ = 0;  // in held_
  ToolCallObject object_;
  bool told_ = false;  // as a call: nothing of it is held
};

}  // namespace runahead
