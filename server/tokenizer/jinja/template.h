// Jinja templates, as far as chat templates use them, evaluated without running anything of anybody's. Nothing outside
// this folder includes more of it than this file and value.h, of which it makes and reads values.
//
// What is there: outputs, text and comments; if, for (with a condition and else; the loop's variables but for depth and
// depth0; break and continue), set (names, several at once, members of a namespace, blocks with filters), macro,
// filter, and {% generation %}, which does nothing; the operators but for /, //, ** and comparisons in a row,
// arithmetic of integers; conditional expressions; lists, tuples, dicts whose keys are strings, slices; what
// operators.cc, builtins.cc and text_builtins.cc list. White space is as transformers sets it up (trim_blocks,
// lstrip_blocks). As with transformers, nothing can be changed but names and members of namespaces. All else is refused
// when the template is parsed, or the rendering fails, with the line and what stands there; integers beyond 64 bits,
// too. Marking as safe does nothing.
//
// No template can do harm: steps, memory and depth are bounded (Limits), and there are no files, no network and no
// clock: the time is an argument.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/tokenizer/jinja/rendering.h"
#include "server/tokenizer/jinja/value.h"
#include "server/tokenizer/keep_going.h"

namespace runahead::jinja {

// Immutable and thread-safe.
class Template {
 public:
  // INVALID_ARGUMENT: "line 3, at `...`: what is wrong".
  static absl::StatusOr<Template> Parse(std::string_view source);

  // The text that the template makes of the variables; a later one of a name replaces an earlier one. INVALID_ARGUMENT
  // says where it failed, or what the template itself complains about; what `keep_going` fails with ends it, too.
  absl::StatusOr<Text> Render(std::vector<std::pair<std::string, Value>> variables, absl::Time now,
                              KeepGoing keep_going, const Limits& limits = {}) const;

 private:
  Template() = default;

  std::string source_;
  Node root_;
};

}  // namespace runahead::jinja
