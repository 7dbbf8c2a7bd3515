#include "server/grammar/grammar_compiler.h"

#include <xgrammar/xgrammar.h>

#include <exception>
#include <functional>
#include <list>
#include <new>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"
#include "server/base/printable.h"
#include "server/grammar/grammar_work.h"
#include "server/grammar/late_masks.h"
#include "server/grammar/vocabulary_bytes.h"
#include "server/grammar/xgrammar_messages.h"

namespace runahead {
namespace {

constexpr const char* kLess = "smaller counts, and fewer parts that may be left out, take less";

class CompiledForm : public CompiledGrammar {
 public:
  CompiledForm(xgrammar::CompiledGrammar compiled, const GrammarCompilerOptions& options,
               std::unique_ptr<FormMasks> late)
      : compiled_(std::move(compiled)),
        bytes_(compiled_.MemorySizeBytes()),
        options_(options),
        late_(std::move(late)) {}
  size_t bytes() const override { return bytes_; }
  std::unique_ptr<GrammarState> Begin() const override;
  const xgrammar::CompiledGrammar& compiled() const { return compiled_; }
  // Acts on a state of the form, within the work that a token may take.
  void Act(const std::function<void()>& act) const {
    const GrammarWork work(options_.token_work, options_.late_work, late_.get());
    act();
    if (work.done() > options_.long_work) SetTakesLong();
  }

 private:
  const xgrammar::CompiledGrammar compiled_;
  const size_t bytes_;
  const GrammarCompilerOptions options_;
  const std::unique_ptr<FormMasks> late_;
};

class MatcherState : public GrammarState {
 public:
  explicit MatcherState(std::shared_ptr<const CompiledGrammar> grammar)
      : grammar_(std::move(grammar)), matcher_(static_cast<const CompiledForm&>(*grammar_).compiled()) {}
  MatcherState(std::shared_ptr<const CompiledGrammar> grammar, xgrammar::GrammarMatcher matcher)
      : grammar_(std::move(grammar)), matcher_(std::move(matcher)) {}

  absl::Status Accept(int32_t id) override {
    bool accepted = false;
    if (id >= 0 && id < vocabulary_size() && !Ended()) {
      RUNAHEAD_RETURN_IF_ERROR(Guarded([&] { accepted = matcher_.AcceptToken(id); }));
    }
    if (accepted) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("structure: token ", id, " does not go on with the answer's form"));
  }

  absl::StatusOr<bool> FillMask(absl::Span<uint32_t> allowed) override {
    if (static_cast<int64_t>(allowed.size()) != (vocabulary_size() + 31) / 32) {
      return absl::InternalError(absl::StrCat("a mask of ", allowed.size(), " words for ", vocabulary_size(), " ids"));
    }
    std::fill(allowed.begin(), allowed.end(), 0);
    if (Ended()) return true;
    int64_t shape[] = {static_cast<int64_t>(allowed.size())};
    DLTensor tensor = {};
    tensor.data = allowed.data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = 1;
    tensor.dtype = xgrammar::GetBitmaskDLType();
    tensor.shape = shape;
    bool limits = true;
    RUNAHEAD_RETURN_IF_ERROR(Guarded([&] { limits = matcher_.FillNextTokenBitmask(&tensor); }));
    return limits;
  }

  bool Complete() const override { return Ended() || matcher_.IsCompleted(); }
  bool Ended() const override { return matcher_.IsTerminated(); }

  std::unique_ptr<GrammarState> Copy() const override {
    return std::make_unique<MatcherState>(grammar_, matcher_.Fork());
  }

 private:
  int64_t vocabulary_size() const {
    return static_cast<const CompiledForm&>(*grammar_).compiled().GetTokenizerInfo().GetVocabSize();
  }

  absl::Status Guarded(const std::function<void()>& act) {
    if (!broken_.ok()) return broken_;
    try {
      static_cast<const CompiledForm&>(*grammar_).Act(act);
    } catch (const GrammarWorkTooMuch&) {
      broken_ = absl::OutOfRangeError(
          absl::StrCat("structure: what the form allows here takes too much work to find out; ", kLess));
    } catch (const std::exception& error) {
      broken_ = absl::InternalError(absl::StrCat("structure: ", OneLine(error.what())));
    }
    return broken_;
  }

  std::shared_ptr<const CompiledGrammar> grammar_;
  xgrammar::GrammarMatcher matcher_;
  absl::Status broken_;  // the matcher is not to be used any more
};

std::unique_ptr<GrammarState> CompiledForm::Begin() const {
  return std::make_unique<MatcherState>(shared_from_this());
}

xgrammar::TokenizerInfo Vocabulary(const std::vector<std::string>& bytes, const std::vector<int32_t>& ends) {
  return xgrammar::TokenizerInfo(bytes, xgrammar::VocabType::RAW, static_cast<int>(bytes.size()), ends);
}

class CachingCompiler : public GrammarCompiler {
 public:
  CachingCompiler(const std::vector<std::string>& bytes, const std::vector<int32_t>& ends,
                  const GrammarCompilerOptions& options)
      : options_(options),
        text_(Vocabulary(bytes, ends), /*max_threads=*/1, /*cache_enabled=*/false),
        json_(Vocabulary(JsonVocabularyBytes(bytes), ends), /*max_threads=*/1, /*cache_enabled=*/false),
        late_(std::make_shared<LateMasks>(options.cache_bytes)) {}

  absl::StatusOr<std::shared_ptr<const CompiledGrammar>> Compile(const StructureSpec& spec) override {
    RUNAHEAD_ASSIGN_OR_RETURN(const CheckedStructure checked, PrepareStructure(spec));
    const std::string key = absl::StrCat(checked.is_json ? "j" : "g", checked.text.size(), ":", checked.text,
                                         checked.before.size(), ":", checked.before, checked.behind);
    bool found = false;
    const std::shared_ptr<Entry> entry = Find(key, found);
    if (found) return Await(*entry);
    absl::StatusOr<std::shared_ptr<const CompiledGrammar>> compiled = CompileNow(checked);
    if (!compiled.ok() && absl::IsInvalidArgument(compiled.status())) {
      compiled = absl::InvalidArgumentError(absl::StrCat(FieldOf(spec.kind), ": ", compiled.status().message()));
    }
    Keep(key, entry, compiled);
    return compiled;
  }

 private:
  struct Entry {
    bool done = false;
    absl::StatusOr<std::shared_ptr<const CompiledGrammar>> compiled = nullptr;
    std::list<std::string>::iterator place;  // in recent_, once it is done
  };

  std::shared_ptr<Entry> Find(const std::string& key, bool& found) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    std::shared_ptr<Entry>& entry = entries_[key];
    found = entry != nullptr;
    if (!found) entry = std::make_shared<Entry>();
    if (entry->done) recent_.splice(recent_.begin(), recent_, entry->place);
    return entry;
  }

  absl::StatusOr<std::shared_ptr<const CompiledGrammar>> Await(const Entry& entry) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (!entry.done) done_.Wait(mu_);
    return entry.compiled;
  }

  void Keep(const std::string& key, const std::shared_ptr<Entry>& entry,
            const absl::StatusOr<std::shared_ptr<const CompiledGrammar>>& compiled) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    entry->compiled = compiled;
    entry->done = true;
    done_.NotifyAll();
    // What takes too much work would take it again; what fails for want of memory need not.
    if (!compiled.ok() && !absl::IsInvalidArgument(compiled.status())) {
      entries_.erase(key);
      return;
    }
    recent_.push_front(key);
    entry->place = recent_.begin();
    kept_bytes_ += BytesOf(*entry, key);
    while (kept_bytes_ > options_.cache_bytes && !recent_.empty()) {
      const auto oldest = entries_.find(recent_.back());
      kept_bytes_ -= BytesOf(*oldest->second, oldest->first);
      entries_.erase(oldest);
      recent_.pop_back();
    }
  }

  static size_t BytesOf(const Entry& entry, const std::string& key) {
    const size_t form = entry.compiled.ok() ? (*entry.compiled)->bytes() : entry.compiled.status().message().size();
    return form + 2 * key.size() + sizeof(Entry);
  }

  absl::StatusOr<std::shared_ptr<const CompiledGrammar>> CompileNow(const CheckedStructure& checked) {
    const XgrammarWarnings warnings;
    try {
      bool late = false;
      xgrammar::CompiledGrammar compiled = Compiled(checked, late);
      const auto form =
          std::make_shared<const CompiledForm>(std::move(compiled), options_, LateMasks::OfNewForm(late_));
      if (late) form->SetTakesLong();
      // What is left out would not be kept.
      if (!warnings.first().empty()) return absl::InvalidArgumentError(OneLine(warnings.first()));
      RUNAHEAD_RETURN_IF_ERROR(CheckBytes(form->bytes()));
      RUNAHEAD_RETURN_IF_ERROR(CheckBegin(form));
      return form;
    } catch (const GrammarWorkTooMuch&) {
      return absl::InvalidArgumentError(
          absl::StrCat("it takes too much work to compile for this model's tokens; ", kLess));
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError("structure: there is no memory to compile it");
    } catch (const std::exception& error) {
      return absl::InvalidArgumentError(OneLine(error.what()));
    }
  }

  // `late`: masks of states are left for later.
  xgrammar::CompiledGrammar Compiled(const CheckedStructure& checked, bool& late) {
    const GrammarWork work(options_.compile_work, options_.ahead_work, nullptr);
    xgrammar::CompiledGrammar compiled =
        checked.is_json ? CompileJson(checked) : text_.CompileGrammar(xgrammar::Grammar::FromEBNF(checked.text));
    late = work.masks_spent();
    return compiled;
  }

  xgrammar::CompiledGrammar CompileJson(const CheckedStructure& checked) {
    using xgrammar::Grammar;
    // On one line, with one blank behind commas and colons: blanks without a bound can be written for ever.
    const Grammar json = Grammar::FromJSONSchema(checked.text, /*any_whitespace=*/false, /*indent=*/std::nullopt,
                                                 /*separators=*/std::nullopt, /*strict_mode=*/false);
    std::vector<Grammar> parts = {json};
    if (!checked.before.empty()) parts.insert(parts.begin(), Grammar::FromEBNF(checked.before));
    if (!checked.behind.empty()) parts.push_back(Grammar::FromEBNF(checked.behind));
    return json_.CompileGrammar(parts.size() == 1 ? json : Grammar::Concat(parts));
  }

  absl::Status CheckBytes(size_t bytes) const {
    if (bytes <= options_.form_bytes) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("compiled, it takes ", bytes >> 20, " MiB of memory, more than ",
                                                   options_.form_bytes >> 20, "; ", kLess));
  }

  static absl::Status CheckBegin(const std::shared_ptr<const CompiledForm>& form) {
    const std::unique_ptr<GrammarState> state = form->Begin();
    std::vector<uint32_t> allowed((form->compiled().GetTokenizerInfo().GetVocabSize() + 31) / 32);
    const absl::Status filled = state->FillMask(absl::MakeSpan(allowed)).status();
    if (absl::IsOutOfRange(filled)) {
      return absl::InvalidArgumentError(
          absl::StrCat("how a text of it begins takes too much work to find out; ", kLess));
    }
    RUNAHEAD_RETURN_IF_ERROR(filled);
    for (const uint32_t word : allowed) {
      if (word != 0) return absl::OkStatus();
    }
    return absl::InvalidArgumentError("no token of the model begins a text of this form");
  }

  const GrammarCompilerOptions options_;
  xgrammar::GrammarCompiler text_;
  xgrammar::GrammarCompiler json_;
  const std::shared_ptr<LateMasks> late_;
  Mutex mu_;
  CondVar done_;
  absl::flat_hash_map<std::string, std::shared_ptr<Entry>> entries_ RUNAHEAD_GUARDED_BY(mu_);
  std::list<std::string> recent_ RUNAHEAD_GUARDED_BY(mu_);  // keys of what is done; the newest first
  size_t kept_bytes_ RUNAHEAD_GUARDED_BY(mu_) = 0;
};

}  // namespace

absl::Status StructuredOutputStatus() {
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<GrammarCompiler>> GrammarCompiler::Create(const Tokenizer& tokenizer,
                                                                         const GrammarCompilerOptions& options) {
  const std::vector<std::string> bytes = VocabularyBytes(tokenizer, options.vocabulary_size);
  std::vector<int32_t> ends;
  for (const int32_t id : tokenizer.end_ids()) {
    if (id < options.vocabulary_size) ends.push_back(id);
  }
  try {
    return std::make_unique<CachingCompiler>(bytes, ends, options);
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("the vocabulary for structured output: ", OneLine(error.what())));
  }
}

}  // namespace runahead
