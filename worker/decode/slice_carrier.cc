#include "worker/decode/slice_carrier.h"

#include <algorithm>
#include <utility>

#include "kernels/base/mutex.h"

namespace runahead {
namespace {

// The slices of one Send. Answers come on any thread; the last one ends it, without the lock.
class Round {
 public:
  Round(KvStore::Lent rows, SequenceCarrier::Done done) : rows_(std::move(rows)), done_(std::move(done)) {}

  const KvStore::Lent& rows() const { return *rows_; }

  void Begin() RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    ++left_;
  }
  void End(const absl::Status& status, int64_t bytes) RUNAHEAD_EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      if (status_.ok()) status_ = status;
      if (status.ok()) bytes_ += bytes;
      if (--left_ > 0) return;
    }
    rows_.reset();  // before who waits for it goes on
    done_(Outcome());
  }

 private:
  absl::StatusOr<int64_t> Outcome() RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (!status_.ok()) return status_;
    return bytes_;
  }

  std::optional<KvStore::Lent> rows_;  // read while slices are pushed, and ended by the last answer
  const SequenceCarrier::Done done_;
  Mutex mu_;
  int left_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  int64_t bytes_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  absl::Status status_ RUNAHEAD_GUARDED_BY(mu_);
};

class SliceCarrier final : public SequenceCarrier {
 public:
  SliceCarrier(std::shared_ptr<HandoffSender> sender, MoveTarget target, RowForm form, int64_t layers,
               std::vector<int64_t> hidden)
      : sender_(std::move(sender)),
        target_(std::move(target)),
        form_(form),
        layers_(layers),
        hidden_(std::move(hidden)) {
    hidden_.resize(static_cast<size_t>(layers));
  }

  void Send(KvStore::Lent rows, Done done) override {
    const auto round = std::make_shared<Round>(std::move(rows), std::move(done));
    round->Begin();  // this very loop, so that it does not end before all are pushed
    for (int64_t layer = 0; layer < layers_; ++layer) PushLayer(round, layer);
    round->End(absl::OkStatus(), 0);
  }

  void Cancel() override { sender_->Cancel(target_.lease); }

 private:
  void PushLayer(const std::shared_ptr<Round>& round, int64_t layer) {
    const KvStore::Lent& rows = round->rows();
    int64_t at = std::max(rows.begin(), hidden_[static_cast<size_t>(layer)]);
    if (at >= rows.end()) return;
    for (const KvSpan& span : rows.Spans(layer, at)) {
      const Slice slice{target_.lease, static_cast<int32_t>(layer), at, at + span.tokens, SliceKind::kKv, form_};
      at += span.tokens;
      round->Begin();
      sender_->Push(target_.peer, slice, span.rows, Event())
          .OnFire([round, bytes = static_cast<int64_t>(span.rows.size)](const absl::Status& status) {
            round->End(status, bytes);
          });
    }
  }

  const std::shared_ptr<HandoffSender> sender_;
  const MoveTarget target_;
  const RowForm form_;
  const int64_t layers_;
  std::vector<int64_t> hidden_;
};

}  // namespace

std::shared_ptr<SequenceCarrier> MakeSliceCarrier(std::shared_ptr<HandoffSender> sender, MoveTarget target,
                                                  RowForm form, int64_t layers, std::vector<int64_t> hidden) {
  return std::make_shared<SliceCarrier>(std::move(sender), std::move(target), form, layers, std::move(hidden));
}

}  // namespace runahead
