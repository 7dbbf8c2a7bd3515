#include "worker/model/grammar_source.h"

#include "kernels/base/status_macros.h"

namespace runahead {

namespace {

// The router takes INVALID_ARGUMENT of a worker for its own mistake, and this is what only compiling finds.
absl::Status OfRequest(const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? absl::OutOfRangeError(status.message()) : status;
}

// Made when the first form is wanted: who wants the second meanwhile waits for it, too.
class LateCompiler {
 public:
  LateCompiler(GrammarSource::OpenTokenizer open, int64_t vocab) : open_(std::move(open)), vocab_(vocab) {}

  absl::StatusOr<GrammarCompiler*> Get() RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (compiler_ == nullptr) {
      RUNAHEAD_ASSIGN_OR_RETURN(const std::shared_ptr<const Tokenizer> tokenizer, open_());
      RUNAHEAD_ASSIGN_OR_RETURN(compiler_, GrammarCompiler::Create(*tokenizer, {.vocabulary_size = vocab_}));
    }
    return compiler_.get();
  }

 private:
  const GrammarSource::OpenTokenizer open_;
  const int64_t vocab_;
  Mutex mu_;
  std::unique_ptr<GrammarCompiler> compiler_ RUNAHEAD_GUARDED_BY(mu_);
};

GrammarSource::Compile CompilerOf(GrammarSource::OpenTokenizer open, int64_t vocab) {
  return [late = std::make_shared<LateCompiler>(std::move(open), vocab)](
             const StructureSpec& spec) -> absl::StatusOr<std::shared_ptr<const CompiledGrammar>> {
    RUNAHEAD_ASSIGN_OR_RETURN(GrammarCompiler* const compiler, late->Get());
    return compiler->Compile(spec);
  };
}

}  // namespace

GrammarSource::GrammarSource(Compile compile) : compile_(std::move(compile)) {
  for (TaskThread* const thread : {&one_, &other_}) thread->Post([this] { Run(); });
}

GrammarSource::GrammarSource(OpenTokenizer open, int64_t vocab) : GrammarSource(CompilerOf(std::move(open), vocab)) {}

GrammarSource::~GrammarSource() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    changed_.NotifyAll();
  }
  one_.Stop();
  other_.Stop();
  MutexLock lock(mu_);
  for (const auto& wanted : queue_) wanted->ready_.Fire(absl::AbortedError("the source of grammars has ended"));
}

std::shared_ptr<const WantedGrammar> GrammarSource::Want(StructureSpec spec) {
  auto wanted = std::make_shared<WantedGrammar>(std::move(spec));
  MutexLock lock(mu_);
  queue_.push_back(wanted);
  changed_.NotifyAll();
  return wanted;
}

std::shared_ptr<WantedGrammar> GrammarSource::Next() {
  MutexLock lock(mu_);
  for (;;) {
    while (queue_.empty() && !stop_) changed_.Wait(mu_);
    if (stop_) return nullptr;
    std::shared_ptr<WantedGrammar> next = std::move(queue_.front());
    queue_.pop_front();
    // Those that nobody waits for any more, as their requests have ended, are not compiled.
    if (next.use_count() > 1) return next;
  }
}

void GrammarSource::Run() {
  while (const std::shared_ptr<WantedGrammar> wanted = Next()) {
    absl::StatusOr<std::shared_ptr<const CompiledGrammar>> compiled = compile_(wanted->spec_);
    if (compiled.ok()) wanted->grammar_ = *std::move(compiled);
    wanted->ready_.Fire(OfRequest(compiled.status()));
  }
}

}  // namespace runahead
