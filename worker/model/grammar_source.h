// The forms that answers are to have, compiled for the model's tokens beside the work that draws them.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/base/event.h"
#include "kernels/base/mutex.h"
#include "server/base/task_thread.h"
#include "server/grammar/grammar_compiler.h"
#include "server/grammar/structure_spec.h"
#include "server/tokenizer/tokenizer.h"

namespace runahead {

// A form that is being compiled, or has been. Thread-safe.
class WantedGrammar {
 public:
  explicit WantedGrammar(StructureSpec spec) : spec_(std::move(spec)) {}

  // Fires when the grammar is there, or with why it never will be: OUT_OF_RANGE where the form cannot be kept, or
  // UNIMPLEMENTED where this build compiles none.
  Event ready() const { return ready_.event(); }
  // Not null once `ready` fired with OK.
  const std::shared_ptr<const CompiledGrammar>& grammar() const { return grammar_; }

 private:
  friend class GrammarSource;
  const StructureSpec spec_;
  EventSource ready_;
  std::shared_ptr<const CompiledGrammar> grammar_;  // written before ready_ fires
};

// Thread-safe. Has two threads that compile forms in the order in which they are wanted, so that the others do not wait
// for one that takes long. What nobody has compiled yet when it ends fires with ABORTED.
class GrammarSource {
 public:
  using Compile = std::function<absl::StatusOr<std::shared_ptr<const CompiledGrammar>>(const StructureSpec&)>;
  // `compile` is called on both threads of the source.
  explicit GrammarSource(Compile compile);
  using OpenTokenizer = std::function<absl::StatusOr<std::shared_ptr<const Tokenizer>>()>;
  // Compiles by a GrammarCompiler. `vocab`: rows of the model's head. `open` gives the model's tokenizer, when the
  // first form is wanted, and again for the next one where it failed.
  GrammarSource(OpenTokenizer open, int64_t vocab);
  ~GrammarSource();

  // Returns at once. Forms that were wanted lately are kept compiled. One that is let go of before its turn is not
  // compiled, and its event fires with ABORTED.
  std::shared_ptr<const WantedGrammar> Want(StructureSpec spec) RUNAHEAD_EXCLUDES(mu_);

 private:
  void Run();
  // The next one to compile; null: the source ends.
  std::shared_ptr<WantedGrammar> Next() RUNAHEAD_EXCLUDES(mu_);

  const Compile compile_;
  Mutex mu_;
  CondVar changed_;
  std::deque<std::shared_ptr<WantedGrammar>> queue_ RUNAHEAD_GUARDED_BY(mu_);
  bool stop_ RUNAHEAD_GUARDED_BY(mu_) = false;
  TaskThread one_{"grammars"}, other_{"grammars"};
};

}  // namespace runahead
