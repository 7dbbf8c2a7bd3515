// A prefix between processes. The head sends an ask, a transfer without bytes, whose header says which rows it wants.
// The decode worker sends them as slices, over the same connection, and answers the ask when the head has taken all of
// them, or with why it has not. So the answer says that the rows are there, and a connection that ends ends the ask.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/row_form.h"
#include "server/base/task_thread.h"
#include "worker/handoff/epoch_sender.h"
#include "worker/handoff/opened_rows.h"
#include "worker/handoff/prefix_loader.h"
#include "worker/handoff/slice_sender.h"
#include "worker/kv/store.h"
#include "worker/link/message_engine.h"

namespace runahead {

// An ask's header: which rows, and where the links of who asks listen.
struct PrefixAsk {
  Slice rows;
  std::string address;
};
std::string PackAsk(const PrefixAsk& ask);
// Nothing when it is no such header. Values out of their range become ones that fit no store.
std::optional<PrefixAsk> UnpackAsk(std::string_view header);

struct PrefixLoaderOptions {
  // Rows go to memory of its device, and pass through it; null: to memory of the host. It ends after the loader.
  std::shared_ptr<StagingLane> lane = nullptr;
  std::function<void()> on_damaged = {};  // rows came damaged, and come again if they may; any thread, may be empty
};

// The head's side. The engine outlives it; one per engine. Destroying it ends what is loaded with UNAVAILABLE and
// closes hand-off's connections; not on a callback.
std::unique_ptr<PrefixLoader> MakeMessagePrefixLoader(MessageEngine& engine, PrefixLoaderOptions options = {});

struct PrefixLenderOptions {
  RowForm form = RowForm::kF32;                 // of rows of KV as they are lent, and as they arrive
  std::shared_ptr<StagingLane> lane = nullptr;  // as HandoffSenderOptions's, of the store's memory
};

// The decode worker's side: answers asks for rows of `store`, which keeps (KvStore::keeps), from its construction on.
// Rows that the store quantises are opened (OpenedRows) on a thread of its own, ask by ask. Thread-safe. Engine and
// store outlive it; one per engine. Destroying it closes hand-off's connections, and nothing of the store is lent any
// more when it returns.
class PrefixLender {
 public:
  PrefixLender(MessageEngine& engine, KvStore& store, PrefixLenderOptions options);
  ~PrefixLender();
  PrefixLender(const PrefixLender&) = delete;
  PrefixLender& operator=(const PrefixLender&) = delete;

 private:
  class Loan;
  void OnAsk(const Message& message);
  absl::Status Lend(const PeerId& to, const Slice& rows, const std::shared_ptr<MessagePayload>& ask);
  // Each span of the loan, from slice.begin on.
  void PushAsStored(const PeerId& to, Slice slice, const std::shared_ptr<Loan>& loan);
  void PushOpened(const PeerId& to, Slice slice, const std::shared_ptr<Loan>& loan);
  Event PushSpan(const PeerId& to, Slice& slice, const KvSpan& span, const std::shared_ptr<Loan>& loan);

  MessageEngine& engine_;
  KvStore& store_;
  const PrefixLenderOptions options_;
  std::unique_ptr<EpochSender> sender_;  // ends before the thread that pushes
  std::unique_ptr<OpenedRows> opened_;   // used on `opening_`; null, as that is, where rows go as the store has them
  std::unique_ptr<TaskThread> opening_;
};

}  // namespace runahead
