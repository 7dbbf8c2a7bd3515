// Forms of answers, compiled for the tokens of a model.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/grammar/structure_spec.h"
#include "server/tokenizer/tokenizer.h"

namespace runahead {

class GrammarState;

// A form, ready to be followed. Immutable, hence safe for any number of threads; outlives its compiler.
class CompiledGrammar : public std::enable_shared_from_this<CompiledGrammar> {
 public:
  virtual ~CompiledGrammar() = default;
  virtual size_t bytes() const = 0;  // of memory, about
  // The state at the begin of an answer. It shares the form.
  virtual std::unique_ptr<GrammarState> Begin() const = 0;

  // Whether a mask of it takes long, or did once: for those who make masks.
  bool takes_long() const { return takes_long_; }
  void SetTakesLong() const { takes_long_ = true; }

 private:
  mutable std::atomic<bool> takes_long_ = false;
};

struct GrammarCompilerOptions {
  // Ids of the model: the rows of its head. Those beyond the tokenizer's are never allowed.
  int64_t vocabulary_size = 0;
  // Of compiled forms that are kept for who asks for them next, and as much again of masks that were made late.
  size_t cache_bytes = size_t{64} << 20;
  size_t form_bytes = size_t{64} << 20;  // of a compiled form, without late masks
  // What follows are steps of xgrammar (grammar_work.h), some 25 ns each, 45 on a busy machine. Measured: docs/structure.md.
  // States and edges of the automata that a form is compiled to, of which some 6 bytes each are in memory at the same
  // time: the most that a text of 64 KiB took was 3.4 million.
  int64_t compile_work = int64_t{1} << 23;
  // For masks of states that are made when the form is compiled; the others are made when an answer comes there.
  int64_t ahead_work = int64_t{1} << 22;
  // For what one token may be, and for the masks that are made late for it. They are there for forms that may be read
  // in very many ways: texts of three bounded lengths take 41 million of the second with 262,144 tokens.
  int64_t token_work = int64_t{1} << 23;
  int64_t late_work = int64_t{1} << 26;
  // From here on a mask takes long, for whoever makes masks: a third of a millisecond.
  int64_t long_work = int64_t{1} << 13;
};

// Safe for any number of threads. Takes some megabytes for the vocabulary, and milliseconds to seconds to compile: not
// for a thread that others wait for.
class GrammarCompiler {
 public:
  // UNIMPLEMENTED where this build has no structured output; the message says what to do. `tokenizer` is not kept.
  static absl::StatusOr<std::unique_ptr<GrammarCompiler>> Create(const Tokenizer& tokenizer,
                                                                 const GrammarCompilerOptions& options);
  virtual ~GrammarCompiler() = default;

  // INVALID_ARGUMENT as CheckStructure, and for what only compiling finds, as that it takes more than compile_work or
  // form_bytes. Who asks for what another thread compiles waits for that.
  virtual absl::StatusOr<std::shared_ptr<const CompiledGrammar>> Compile(const StructureSpec& spec) = 0;
};

// Whether this build can compile forms; else UNIMPLEMENTED, as Create says it.
absl::Status StructuredOutputStatus();

// Where an answer is in its form: what follows from its ids, and nothing else. For one thread at a time.
class GrammarState {
 public:
  virtual ~GrammarState() = default;

  // The answer goes on with `id`. INVALID_ARGUMENT where the form does not allow it; the state stays as it was. Other
  // errors as FillMask. An end
  // token ends the answer: nothing goes on behind it.
  virtual absl::Status Accept(int32_t id) = 0;

  // Bit id % 32 of word id / 32 says whether `id` may come next; `allowed` has vocabulary_size / 32 words, rounded up.
  // False: any token may, but for those that are never allowed. `allowed` is set in both cases. All bits are 0 where no
  // token goes on: behind an end token, or where the vocabulary has none for what must come. OUT_OF_RANGE: it takes
  // more than token_work or late_work; INTERNAL: a fault. After both the state only says so.
  virtual absl::StatusOr<bool> FillMask(absl::Span<uint32_t> allowed) = 0;

  // Whether what there is has the form as a whole: the answer may end.
  virtual bool Complete() const = 0;
  // Whether an end token has ended it.
  virtual bool Ended() const = 0;

  virtual std::unique_ptr<GrammarState> Copy() const = 0;
};

}  // namespace runahead
