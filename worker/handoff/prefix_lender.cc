#include <optional>
#include <utility>
#include <vector>

#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"
#include "worker/handoff/message_handoff.h"
#include "worker/handoff/message_prefix.h"

namespace runahead {

// The slices that answer one ask. Each ends on any thread; the last one ends the loan, without the lock.
class PrefixLender::Loan {
 public:
  Loan(KvStore::Lent rows, std::shared_ptr<MessagePayload> ask) : rows_(std::move(rows)), ask_(std::move(ask)) {}

  const KvStore::Lent& rows() const { return *rows_; }

  void Begin() RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    ++left_;
  }
  // The first failure so far.
  absl::Status status() RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return status_;
  }
  void End(const absl::Status& status) RUNAHEAD_EXCLUDES(mu_) {
    absl::StatusCode code{};
    {
      MutexLock lock(mu_);
      if (status_.ok()) status_ = status;
      if (--left_ > 0) return;
      code = status_.code();
    }
    rows_.reset();
    ask_->Answer(code);
  }

 private:
  std::optional<KvStore::Lent> rows_;  // read while slices are pushed, and ended by the last one
  const std::shared_ptr<MessagePayload> ask_;
  Mutex mu_;
  int left_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  absl::Status status_ RUNAHEAD_GUARDED_BY(mu_);
};

std::string PackAsk(const PrefixAsk& ask) {
  return PackSlice(ask.rows) + ask.address;
}

std::optional<PrefixAsk> UnpackAsk(std::string_view header) {
  if (header.size() <= sizeof(SliceWire)) return std::nullopt;
  const std::optional<Slice> rows = UnpackSlice(header.substr(0, sizeof(SliceWire)));
  if (!rows.has_value()) return std::nullopt;
  return PrefixAsk{*rows, std::string(header.substr(sizeof(SliceWire)))};
}

PrefixLender::PrefixLender(MessageEngine& engine, KvStore& store, PrefixLenderOptions options)
    : engine_(engine), store_(store), options_(std::move(options)) {
  HandoffSenderOptions slices;
  slices.lane = options_.lane;
  sender_ = std::make_unique<EpochSender>(
      std::make_unique<SliceSender>(MakeMessageSliceTransport(engine, MessageKind::kPrefixRows), slices));
  if (store.options().quantisation.has_value()) {
    opened_ = std::make_unique<OpenedRows>(store.options());
    opening_ = std::make_unique<TaskThread>("lent rows");
  }
  engine_.SetHandler(MessageKind::kPrefixAsk, [this](const Message& message) { OnAsk(message); });
}

PrefixLender::~PrefixLender() {
  engine_.SetHandler(MessageKind::kPrefixAsk, nullptr);
  sender_->End();  // then nothing of what is being opened waits for a peer
  if (opening_ != nullptr) opening_->Abandon();
}

// Who asks has proved who it is; of where it listens only its word is known, which a connection that is there is
// compared with.
void PrefixLender::OnAsk(const Message& message) {
  const std::optional<PrefixAsk> ask = UnpackAsk(message.header);
  const bool is_ask = ask.has_value() && message.payload->size() == 0 && IsOfHandoff(message.from);
  if (!is_ask) return;  // discarded with the message
  PeerId to{ask->address, message.from.incarnation, {}, message.from.epoch, message.from.generation};
  const absl::Status refused = Lend(to, ask->rows, message.payload);
  if (!refused.ok()) message.payload->Answer(refused.code());
}

// Where it is OK the ask is answered by the loan's end.
absl::Status PrefixLender::Lend(const PeerId& to, const Slice& rows, const std::shared_ptr<MessagePayload>& ask) {
  if (rows.form != options_.form) return absl::FailedPreconditionError("rows are asked for in another form");
  const bool fits = rows.kind == SliceKind::kKv && rows.layer >= 0 && rows.layer < store_.options().layers &&
                    rows.begin >= 0 && rows.begin < rows.end;
  if (!fits) return absl::OutOfRangeError("there are no such rows");
  RUNAHEAD_ASSIGN_OR_RETURN(KvStore::Lent lent, store_.LendKnown(rows.lease, rows.end));
  const auto loan = std::make_shared<Loan>(std::move(lent), ask);
  if (opening_ == nullptr) {
    PushAsStored(to, rows, loan);
  } else if (!opening_->Post([this, to, rows, loan] { PushOpened(to, rows, loan); })) {
    return absl::UnavailableError("nothing is lent any more");
  }
  return absl::OkStatus();
}

Event PrefixLender::PushSpan(const PeerId& to, Slice& slice, const KvSpan& span, const std::shared_ptr<Loan>& loan) {
  slice.end = slice.begin + span.tokens;
  loan->Begin();
  const Event pushed = sender_->Push(to, slice, span.rows, Event());
  pushed.OnFire([loan](const absl::Status& status) { loan->End(status); });
  slice.begin = slice.end;
  return pushed;
}

void PrefixLender::PushAsStored(const PeerId& to, Slice slice, const std::shared_ptr<Loan>& loan) {
  loan->Begin();  // this very loop, so that it does not end before all are pushed
  for (const KvSpan& span : loan->rows().Spans(slice.layer, slice.begin)) PushSpan(to, slice, span, loan);
  loan->End(absl::OkStatus());
}

// Nothing more is opened for a peer that is gone.
void PrefixLender::PushOpened(const PeerId& to, Slice slice, const std::shared_ptr<Loan>& loan) {
  loan->Begin();
  const std::vector<KvSpan> stored = loan->rows().Spans(slice.layer, slice.begin);
  loan->End(opened_->Open(stored, [&](const KvSpan& opened) -> absl::StatusOr<Event> {
    RUNAHEAD_RETURN_IF_ERROR(loan->status());
    return PushSpan(to, slice, opened, loan);
  }));
}

}  // namespace runahead
