// How models write calls of tools.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace runahead {

// How a model writes calls: what its chat template teaches it.
struct ToolFormat {
  std::string open = {};       // stands before a call, or a list of them; empty: nothing does
  std::string close = {};      // stands behind it; may be left out
  std::string separator = {};  // of calls, beside blanks: characters
  bool bare = false;           // a call may come without `open`
  bool anywhere = false;       // a call may come behind other text; else only where the answer begins with one
  // Calls may come as a list, and have the keys of any model (ToolCallObject). They have arguments: JSON that only has
  // a name is an answer.
  bool generic = false;

  // Of a call that is forced: what stands before and behind its object, and the members of that.
  std::string before = {};
  std::string behind = {};
  std::string name_key = "name";
  std::string arguments_key = "arguments";
  bool nested = false;  // the two stand in the member "function"
  bool typed = false;   // before which stands {"type": "function"}
};

// "hermes" (Qwen's too): <tool_call>{"name":..,"arguments":{..}}</tool_call>.
// "llama3": {"name":..,"parameters":{..}}, several with ';' between them, perhaps behind <|python_tag|>.
// "json": a call with any of the keys name, tool_name, and arguments, parameters, input, perhaps in a member
// "function", or a list of such; with a blank and a call of NAME behind the word, it is written like that, and read
// with what stands around it there or without. Nothing for another name, or where what is behind "json " is no such
// call.
std::optional<ToolFormat> ToolFormatOf(absl::string_view name);

}  // namespace runahead
