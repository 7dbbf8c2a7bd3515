// Several answers to one prompt (GenerateRequest.n): a session each, and one call.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/inference.pb.h"
#include "server/base/byte_budget.h"
#include "server/base/trace_context.h"
#include "server/router/answer_role.h"
#include "server/router/cancel_token.h"
#include "server/router/key_account.h"
#include "server/router/request_log.h"
#include "server/router/session.h"
#include "server/task/task.h"
#include "server/task/thread_executor.h"
#include "server/task/wake.h"

namespace runahead {

// For one coroutine, as Session is. Answer 0 goes first. The others begin once a decode worker has KV of the prompt, so
// that they begin with it, one after the other: each waits in the queue, with a turn of its own, until it has its
// workers, and only then does the next one come. So a call takes one place of the queue, and its answers wait for slots
// that others of it have without holding anything. Where no worker has the prompt for them each computes it.
class AnswerGroup final : private AnswerSiblings {
 public:
  // As Session, of a request with `n` above 1. Sessions run on `steps`, which must outlive the group.
  AnswerGroup(const RouterParts& router, ThreadExecutor& steps, v1::GenerateRequest request, absl::Time arrival,
              absl::Time deadline, CancelToken& cancel, ResponseSink& sink,
              const std::optional<TraceContext>& caller = std::nullopt, ByteBudget::Lease memory = {},
              std::string tenant = {}, KeyGrant grant = {});

  // Gives all answers, each message with the answer that it is of. The first error of one ends the others. Whatever the
  // end, nothing of any is left. `settled` as Session::Run's, of answer 0.
  Task<absl::Status> Run(std::function<void()> settled = [] {});

  // None: the answers that come later begin with it, so that the group waits for it.
  std::unique_ptr<LeavingPrompt> HandOverPrompt() { return nullptr; }

  // What the log is to say of the call, once Run() has returned with `status`: of answer 0, with the tokens and
  // failovers of all.
  RequestRecord Record(const absl::Status& status) const RUNAHEAD_EXCLUDES(mu_);

 private:
  class Sink;

  void Took(absl::Span<const int32_t> prompt, int32_t max_tokens, std::vector<AnswerShare> shares) override
      RUNAHEAD_EXCLUDES(mu_);
  void MayBegin() override RUNAHEAD_EXCLUDES(mu_);
  Task<> Answer(int32_t answer, v1::GenerateRequest request, AnswerShare share, std::function<void()> settled);
  // Once answer 0 has its prompt.
  v1::GenerateRequest RequestOf(int32_t answer) const RUNAHEAD_EXCLUDES(mu_);
  AnswerShare TakeShare(int32_t answer) RUNAHEAD_EXCLUDES(mu_);
  // Whether answers [0, answer) leave nothing to wait for to the next one; `status` says whether it is to come.
  bool LookForNext(int32_t answer, absl::Status& status) const RUNAHEAD_EXCLUDES(mu_);
  bool AllEnded(int32_t begun) const RUNAHEAD_EXCLUDES(mu_);
  void Began() RUNAHEAD_EXCLUDES(mu_);
  void Failed(int32_t answer, const absl::Status& status) RUNAHEAD_EXCLUDES(mu_);
  void Ended(int32_t answer, RequestRecord record, ByteBudget::Lease memory) RUNAHEAD_EXCLUDES(mu_);
  // What the call comes to, once all have ended.
  absl::Status Close() RUNAHEAD_EXCLUDES(mu_);

  const RouterParts& router_;
  ThreadExecutor& steps_;
  const int32_t answers_;
  const absl::Time arrival_, deadline_;
  CancelToken& call_;  // the call's
  ResponseSink& sink_;
  const std::optional<TraceContext> caller_;
  const std::string tenant_;
  v1::GenerateRequest first_;  // until answer 0 has it
  AnswerShare first_share_;
  v1::GenerateRequest later_;  // what the others ask for alike
  CancelToken cancel_;         // of all answers
  Wake changed_;
  mutable Mutex mu_;
  std::vector<int32_t> prompt_ RUNAHEAD_GUARDED_BY(mu_);
  int32_t max_tokens_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  std::vector<AnswerShare> shares_ RUNAHEAD_GUARDED_BY(mu_);
  bool may_begin_ RUNAHEAD_GUARDED_BY(mu_) = false;
  int32_t began_ RUNAHEAD_GUARDED_BY(mu_) = 0;  // that have their workers
  std::map<int32_t, RequestRecord> ended_ RUNAHEAD_GUARDED_BY(mu_);
  std::vector<ByteBudget::Lease> kept_ RUNAHEAD_GUARDED_BY(mu_);  // of answers that ended, and may wait for the client
  absl::Status failure_ RUNAHEAD_GUARDED_BY(mu_);                 // the first
};

}  // namespace runahead
