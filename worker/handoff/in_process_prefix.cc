#include "worker/handoff/in_process_prefix.h"

#include <atomic>
#include <cstring>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"
#include "server/base/task_thread.h"
#include "worker/handoff/opened_rows.h"
#include "worker/handoff/slice.h"

namespace runahead {
namespace {

class InProcessPrefixLoader final : public PrefixLoader {
 public:
  InProcessPrefixLoader(KvStore& store, std::shared_ptr<StagingLane> lane, std::shared_ptr<ProgressMeter> progress)
      : store_(store), lane_(std::move(lane)), copying_("prefix copies", std::move(progress)) {
    if (store.options().quantisation.has_value()) opened_ = std::make_unique<OpenedRows>(store.options());
  }
  ~InProcessPrefixLoader() override {
    copying_.Stop();
    MutexLock lock(mu_);
    while (!loads_.empty()) ended_.Wait(mu_);
  }

  Event Load(const PeerId&, const Slice& rows, BufferRef into) override {
    const EventSource source;
    absl::StatusOr<KvStore::Lent> lent = store_.LendKnown(rows.lease, rows.end);
    if (!lent.ok()) {
      const std::string why = absl::StrCat("KV before the chain, ", Describe(rows), ": ", lent.status().message());
      source.Fire(absl::Status(lent.status().code(), why));
      return source.event();
    }
    const auto copying = std::make_shared<Copying>(rows, std::move(into), source, *std::move(lent));
    {
      MutexLock lock(mu_);
      loads_.insert(copying);
    }
    const bool posted = copying_.PostWork(static_cast<double>(copying->into.size), [this, copying] {
      if (opened_ != nullptr) return CopyOpened(copying);
      lane_ == nullptr ? CopyOnHost(copying) : CopyOnDevice(copying);
    });
    if (!posted) End(copying, absl::UnavailableError("the worker is stopping"));
    return source.event();
  }

  void Drop(const LeaseId& lease) override {
    MutexLock lock(mu_);
    for (const auto& copying : loads_) {
      if (copying->rows.lease == lease) copying->dropped = true;
    }
  }

 private:
  // One load.
  struct Copying {
    Copying(const Slice& its_rows, BufferRef place, EventSource its_source, KvStore::Lent its_lent)
        : rows(its_rows), source(std::move(its_source)), into(std::move(place)), lent(std::move(its_lent)) {}
    std::vector<KvSpan> Spans() const { return lent->Spans(rows.layer, rows.begin); }

    const Slice rows;
    const EventSource source;
    BufferRef into;
    std::optional<KvStore::Lent> lent;  // ended before `source` fires
    std::atomic<bool> dropped = false;
    absl::Status copied;  // of the device's copies, which end in their order
  };

  void CopyOnHost(const std::shared_ptr<Copying>& copying) {
    size_t at = 0;
    for (const KvSpan& span : copying->Spans()) {
      if (copying->dropped) break;
      std::memcpy(copying->into.data() + at, span.rows.data(), span.rows.size);
      at += span.rows.size;
    }
    End(copying, absl::OkStatus());
  }

  void CopyOnDevice(const std::shared_ptr<Copying>& copying) {
    if (copying->dropped) return End(copying, absl::OkStatus());
    size_t at = 0;
    for (const KvSpan& span : copying->Spans()) {
      const BufferRef place = copying->into.Slice(at, span.rows.size);
      at += span.rows.size;
      const bool last = at == copying->into.size;
      lane_->Copy(span.rows, place, [this, copying, last](const absl::Status& status) {
        if (copying->copied.ok()) copying->copied = status;
        if (last) End(copying, copying->copied);
      });
    }
  }

  // Of a store that quantises: waits for all of its copies.
  void CopyOpened(const std::shared_ptr<Copying>& copying) {
    size_t at = 0;
    std::vector<Event> copies;
    absl::Status status = opened_->Open(copying->Spans(), [&](const KvSpan& opened) -> absl::StatusOr<Event> {
      if (copying->dropped) return absl::CancelledError("nobody wants it any more");
      copies.push_back(CopyRows(opened.rows, copying->into.Slice(at, opened.rows.size)));
      at += opened.rows.size;
      return copies.back();
    });
    const absl::Status copied = WhenAll(copies).Wait();
    End(copying, status.ok() ? copied : status);
  }
  Event CopyRows(const ConstBufferRef& from, const BufferRef& to) {
    const EventSource done;
    if (lane_ == nullptr) {
      std::memcpy(to.data(), from.data(), from.size);
      done.Fire(absl::OkStatus());
    } else {
      lane_->Copy(from, to, [done](const absl::Status& status) { done.Fire(status); });
    }
    return done.event();
  }

  void End(const std::shared_ptr<Copying>& copying, absl::Status status) RUNAHEAD_EXCLUDES(mu_) {
    if (copying->dropped) status = absl::CancelledError("what a cancelled job had asked for of its prefix was dropped");
    copying->lent.reset();
    copying->into = {};
    copying->source.Fire(std::move(status));
    MutexLock lock(mu_);
    loads_.erase(copying);
    ended_.NotifyAll();
  }

  KvStore& store_;
  const std::shared_ptr<StagingLane> lane_;
  Mutex mu_;
  CondVar ended_;
  std::set<std::shared_ptr<Copying>> loads_ RUNAHEAD_GUARDED_BY(mu_);  // that have not ended
  std::unique_ptr<OpenedRows> opened_;  // used on `copying_`; null where the store's rows are copied as they are
  TaskThread copying_;
};

}  // namespace

std::unique_ptr<PrefixLoader> MakeInProcessPrefixLoader(KvStore& store, std::shared_ptr<StagingLane> lane,
                                                        std::shared_ptr<ProgressMeter> progress) {
  return std::make_unique<InProcessPrefixLoader>(store, std::move(lane), std::move(progress));
}

}  // namespace runahead
