// Templates as trees.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/tokenizer/jinja/value.h"

namespace runahead::jinja {

// What the parts of each kind are stands beside it; [x] may be null.
enum class NodeKind {
  // Expressions.
  kConst,     // value
  kName,      // text
  kList,      // items
  kTuple,     // items
  kDict,      // key, value, key, value, ...
  kMember,    // object; text
  kItem,      // object, index
  kSlice,     // object, [from], [to], [step]
  kCall,      // callee, arguments
  kFilter,    // input (null: what a block has written), arguments; text
  kTest,      // input, arguments; text
  kArgument,  // value of the argument that is called text
  kNot,       // operand
  kUnary,     // operand; text is + or -
  kAnd,       // left, right
  kOr,        // left, right
  kBinary,    // left, right; text is the operator
  kCompare,   // first operand, then a kArgument for each further one, called by the operator before it
  kConcat,    // items
  kIf,        // condition, then, [else]: an expression
  // Statements.
  kBlock,        // statements
  kScope,        // a block, with variables of its own
  kText,         // value
  kOutput,       // expression
  kFor,          // target, list, [condition], body, [else]
  kBranch,       // condition, body, condition, body, ..., [else]
  kSet,          // target, expression
  kSetBlock,     // target, body, [filters]
  kMacro,        // parameters (kArgument, its value [default]), body last; text
  kCallBlock,    // call, caller (a kMacro)
  kFilterBlock,  // filters, body
  kBreak,
  kContinue,
};

struct Node;
using NodePtr = std::unique_ptr<Node>;

struct Node {
  NodeKind kind;
  size_t place = 0;  // in the source
  std::string text;
  Value value;
  std::vector<NodePtr> parts;
  int depth = 1;  // of nodes in one another
};

// Bounds of what is parsed: what goes down a tree needs stack for it.
inline constexpr int kMaxNodeDepth = 200;
inline constexpr size_t kMaxTemplateBytes = size_t{512} << 10;

// `source` as NormalizeLineEnds gives it. INVALID_ARGUMENT names line, place and construct.
absl::StatusOr<NodePtr> ParseTemplate(std::string_view source);

}  // namespace runahead::jinja
