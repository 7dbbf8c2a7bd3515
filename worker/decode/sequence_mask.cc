#include "worker/decode/sequence_mask.h"

#include <optional>
#include <utility>

#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"

namespace runahead {

struct SequenceMask::State {
  State(DrawRules rules, int64_t vocab, std::shared_ptr<const WantedGrammar> grammar)
      : form(std::move(grammar)), mask(std::move(rules), vocab, form) {}

  void Finish(absl::StatusOr<absl::Span<const uint32_t>> next) RUNAHEAD_EXCLUDES(mu) {
    MutexLock lock(mu);
    made = std::move(next);
    being_made = false;
  }

  const std::shared_ptr<const WantedGrammar> form;  // null: none
  TokenMask mask;                                   // the maker's while being_made is set, else the owner's
  Mutex mu;
  bool being_made RUNAHEAD_GUARDED_BY(mu) = false;
  std::optional<absl::StatusOr<absl::Span<const uint32_t>>> made RUNAHEAD_GUARDED_BY(mu);
};

SequenceMask::SequenceMask(DrawRules rules, int64_t vocab, std::shared_ptr<const WantedGrammar> grammar)
    : state_(std::make_shared<State>(std::move(rules), vocab, std::move(grammar))) {}

void SequenceMask::Append(int32_t id) {
  if (state_->form != nullptr) {
    MutexLock lock(state_->mu);
    RUNAHEAD_CHECK(!state_->being_made);
    state_->made.reset();
  }
  state_->mask.Append(id);
}

bool SequenceMask::made() const {
  if (state_->form == nullptr) return true;
  MutexLock lock(state_->mu);
  return state_->made.has_value();
}

absl::StatusOr<absl::Span<const uint32_t>> SequenceMask::Next() {
  if (state_->form == nullptr) return state_->mask.Next();
  MutexLock lock(state_->mu);
  RUNAHEAD_CHECK(state_->made.has_value());
  return *state_->made;
}

MaskMaker::MaskMaker(std::function<void()> on_made) : on_made_(std::move(on_made)) {}

MaskMaker::~MaskMaker() {
  quick_.Abandon();
  slow_.Abandon();
}

void MaskMaker::Make(const SequenceMask& mask) {
  const std::shared_ptr<SequenceMask::State>& state = mask.state_;
  if (state->form == nullptr) return;
  {
    MutexLock lock(state->mu);
    if (state->being_made || state->made.has_value()) return;
    state->being_made = true;
  }
  (state->form->grammar()->takes_long() ? slow_ : quick_).Post([this, of = std::weak_ptr(state)] {
    const std::shared_ptr<SequenceMask::State> state = of.lock();
    if (state == nullptr) return;  // its sequence has ended
    state->Finish(state->mask.Next());
    on_made_();
  });
}

}  // namespace runahead
