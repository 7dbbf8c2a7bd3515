#include "worker/handoff/slice_receiver.h"

#include <utility>

namespace runahead {
namespace {

// Of one token in one layer, as they come; 0: the store takes none.
int64_t RowBytes(const KvStoreOptions& store, SliceKind kind) {
  switch (kind) {
    case SliceKind::kKv:
      return store.row_bytes;
    case SliceKind::kX:
      return store.arriving_x_row_bytes();
  }
  return 0;  // a wire may bring any number
}

SliceVerdict VerdictOn(const absl::Status& committed) {
  if (committed.ok()) return SliceVerdict::kAccepted;
  return absl::IsNotFound(committed) ? SliceVerdict::kNoLease : SliceVerdict::kCorrupt;
}

}  // namespace

std::optional<SliceVerdict> SliceReceiver::Misfit(const SliceHeader& header) const {
  const Slice& slice = header.slice;
  // Rows that the range cannot have would overflow the product: no prompt is that long.
  constexpr int64_t kMostTokens = int64_t{1} << 40;
  const auto row_bytes = static_cast<uint64_t>(RowBytes(store_.options(), slice.kind));
  if (row_bytes == 0) return SliceVerdict::kBadRange;
  const RowForm wanted = slice.kind == SliceKind::kX ? store_.options().arriving_x_form() : options_.kv_form;
  if (slice.form != wanted) return SliceVerdict::kBadForm;
  const bool fits = slice.begin >= 0 && slice.end > slice.begin && slice.end <= kMostTokens &&
                    header.bytes == row_bytes * static_cast<uint64_t>(slice.end - slice.begin);
  return fits ? std::nullopt : std::optional<SliceVerdict>(SliceVerdict::kBadRange);
}

SliceVerdict SliceReceiver::Told(SliceVerdict verdict) const {
  if (options_.on_verdict) options_.on_verdict(verdict);
  return verdict;
}

void SliceReceiver::Begin(const SliceHeader& header, std::function<void(Outcome)> then) {
  if (const auto misfit = Misfit(header)) return then(Told(*misfit));
  Outcome outcome = SliceVerdict::kNoLease;
  {
    MutexLock lock(mu_);  // held over BeginWrite, so that a write that ends meanwhile finds what waits for it
    const Slice& slice = header.slice;
    absl::StatusOr<KvStore::Write> write =
        store_.BeginWrite(slice.lease, slice.layer, slice.begin, slice.end, slice.kind);
    if (write.ok() && write->already_covered()) {
      // Renews the lease, as a slice that arrives does.
      if (write->Commit().status() == absl::OkStatus()) outcome = SliceVerdict::kAccepted;
    } else if (write.ok()) {
      ++writes_;
      outcome = std::make_shared<KvStore::Write>(*std::move(write));
    } else if (absl::IsOutOfRange(write.status())) {
      outcome = SliceVerdict::kBadRange;
    } else if (absl::IsAborted(write.status())) {
      if (writes_ > 0) {
        waiting_.push_back({header, std::move(then)});
        return;
      }
      outcome = SliceVerdict::kCorrupt;  // a write that did not come by here: to be sent again
    }
  }
  if (const auto* const verdict = std::get_if<SliceVerdict>(&outcome)) return then(Told(*verdict));
  const auto write = std::get<Write>(std::move(outcome));
  write->ready().OnFire([write, then = std::move(then)](const absl::Status&) { then(write); });
}

void SliceReceiver::Finish(const SliceHeader& header, const Write& write, std::function<void(SliceVerdict)> then) {
  if (SumPieces(SeedOf(header.slice), write->destination()) == header.sum) return Commit(write, std::move(then));
  NoteDamaged();
  Abandon(write);
  then(SliceVerdict::kCorrupt);
}

void SliceReceiver::Commit(const Write& write, std::function<void(SliceVerdict)> then) {
  write->Commit().OnFire([this, then = std::move(then)](const absl::Status& committed) {
    WriteEnded();
    then(Told(VerdictOn(committed)));
  });
}

void SliceReceiver::NoteDamaged() const {
  if (options_.on_corrupt) options_.on_corrupt();
  Told(SliceVerdict::kCorrupt);
}

void SliceReceiver::Abandon(const Write& write) {
  { const KvStore::Write ended = std::move(*write); }  // now, whoever still holds the pointer
  WriteEnded();
}

void SliceReceiver::WriteEnded() {
  std::vector<Waiting> again;
  {
    MutexLock lock(mu_);
    --writes_;
    again.swap(waiting_);
  }
  for (Waiting& waiting : again) Begin(waiting.header, std::move(waiting.then));
}

}  // namespace runahead
