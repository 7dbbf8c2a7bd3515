#include "server/router/answer_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/answer_seed.h"
#include "server/base/random.h"

namespace runahead {
namespace {

// Without a copy: it may be megabytes.
void MoveInput(v1::GenerateRequest& from, v1::GenerateRequest& to) {
  switch (from.input_case()) {
    case v1::GenerateRequest::kPrompt:
      to.set_prompt(std::move(*from.mutable_prompt()));
      break;
    case v1::GenerateRequest::kChat:
      *to.mutable_chat() = std::move(*from.mutable_chat());
      break;
    case v1::GenerateRequest::kTokenIds:
      *to.mutable_token_ids() = std::move(*from.mutable_token_ids());
      break;
    case v1::GenerateRequest::INPUT_NOT_SET:
      break;
  }
  from.clear_input();
}

// All that stays of it when the prompt is known.
v1::GenerateRequest WithoutInput(v1::GenerateRequest& request) {
  v1::GenerateRequest input;
  MoveInput(request, input);
  v1::GenerateRequest rest = request;
  MoveInput(input, request);
  rest.clear_truncate_prompt();
  rest.clear_prompt_logprobs();
  return rest;
}

// All answers are of one request, whose id and seed say so.
v1::GenerateRequest Named(v1::GenerateRequest request) {
  if (request.request_id().empty()) request.set_request_id(DrawRequestId());
  if (!request.sampling().has_seed()) request.mutable_sampling()->set_seed(RandomBits64());
  return request;
}

absl::Status OfAnswer(int32_t answer, const absl::Status& status) {
  absl::Status named(status.code(), absl::StrCat("answer ", answer, ": ", status.message()));
  status.ForEachPayload(
      [&named](absl::string_view type, const absl::Cord& payload) { named.SetPayload(type, payload); });
  return named;
}

}  // namespace

// Of one answer.
class AnswerGroup::Sink final : public ResponseSink {
 public:
  Sink(AnswerGroup& group, int32_t answer) : group_(group), answer_(answer) {}

  void Send(v1::GenerateResponse response) override {
    const bool began = response.has_started();
    if (began) response.mutable_started()->set_answer(answer_);
    if (response.has_tokens()) response.mutable_tokens()->set_answer(answer_);
    if (response.has_finished()) response.mutable_finished()->set_answer(answer_);
    group_.sink_.Send(std::move(response));
    if (began) group_.Began();
  }

 private:
  AnswerGroup& group_;
  const int32_t answer_;
};

AnswerGroup::AnswerGroup(const RouterParts& router, ThreadExecutor& steps, v1::GenerateRequest request,
                         absl::Time arrival, absl::Time deadline, CancelToken& cancel, ResponseSink& sink,
                         const std::optional<TraceContext>& caller, ByteBudget::Lease memory, std::string tenant,
                         KeyGrant grant)
    : router_(router),
      steps_(steps),
      answers_(request.n()),
      arrival_(arrival),
      deadline_(deadline),
      call_(cancel),
      sink_(sink),
      caller_(caller),
      tenant_(std::move(tenant)),
      first_(Named(std::move(request))),
      first_share_{std::move(memory), std::move(grant)},
      later_(WithoutInput(first_)) {}

Task<absl::Status> AnswerGroup::Run(std::function<void()> settled) {
  const CancelToken::Subscription on_cancel = call_.OnCancel([this] { cancel_.Cancel(call_.status()); });
  steps_.Start(Answer(0, std::move(first_), std::move(first_share_), std::move(settled)));
  int32_t begun = 1;
  absl::Status status;
  while (begun < answers_) {
    while (!LookForNext(begun, status)) co_await changed_.Wait();
    if (!status.ok()) break;
    steps_.Start(Answer(begun, RequestOf(begun), TakeShare(begun), [] {}));
    ++begun;
  }
  while (!AllEnded(begun)) co_await changed_.Wait();
  co_return Close();
}

Task<> AnswerGroup::Answer(int32_t answer, v1::GenerateRequest request, AnswerShare share,
                           std::function<void()> settled) {
  RequestRecord record;
  ByteBudget::Lease memory;
  {
    Sink sink(*this, answer);
    Session session(router_, std::move(request), arrival_, deadline_, cancel_, sink, caller_, std::move(share.memory),
                    tenant_, std::move(share.grant), {answer, answers_, this});
    const absl::Status status = co_await session.Run(std::move(settled));
    record = session.Record(status);
    if (const auto prompt = session.HandOverPrompt(); prompt != nullptr) co_await prompt->Run(cancel_);
    memory = session.HandOverMemory();
  }
  if (!record.status.ok()) Failed(answer, record.status);
  Ended(answer, std::move(record), std::move(memory));  // after which the group may be gone
}

void AnswerGroup::Took(absl::Span<const int32_t> prompt, int32_t max_tokens, std::vector<AnswerShare> shares) {
  MutexLock lock(mu_);
  prompt_.assign(prompt.begin(), prompt.end());
  max_tokens_ = max_tokens;
  shares_ = std::move(shares);
}

void AnswerGroup::MayBegin() {
  MutexLock lock(mu_);
  may_begin_ = true;
  changed_.Notify();
}

v1::GenerateRequest AnswerGroup::RequestOf(int32_t answer) const {
  v1::GenerateRequest request = later_;
  request.mutable_sampling()->set_seed(SeedOfAnswer(later_.sampling().seed(), answer));
  MutexLock lock(mu_);
  request.mutable_token_ids()->mutable_ids()->Add(prompt_.begin(), prompt_.end());
  request.mutable_stop()->set_max_tokens(max_tokens_);
  return request;
}

AnswerShare AnswerGroup::TakeShare(int32_t answer) {
  MutexLock lock(mu_);
  return std::move(shares_[answer - 1]);
}

// Where all before it have ended, and left the prompt nowhere, it computes the prompt anew, and the others wait for it.
bool AnswerGroup::LookForNext(int32_t answer, absl::Status& status) const {
  MutexLock lock(mu_);
  status = failure_;
  if (!status.ok()) return true;
  return began_ == answer && (may_begin_ || static_cast<int32_t>(ended_.size()) == answer);
}

bool AnswerGroup::AllEnded(int32_t begun) const {
  MutexLock lock(mu_);
  return static_cast<int32_t>(ended_.size()) == begun;
}

void AnswerGroup::Began() {
  MutexLock lock(mu_);
  ++began_;
  changed_.Notify();
}

// What ended all of them names none.
void AnswerGroup::Failed(int32_t answer, const absl::Status& status) {
  {
    MutexLock lock(mu_);
    if (!failure_.ok()) return;
    const bool of_all = answer == 0 || call_.cancelled() || absl::IsDeadlineExceeded(status);
    failure_ = of_all ? status : OfAnswer(answer, status);
  }
  cancel_.Cancel(absl::CancelledError(absl::StrCat("answer ", answer, " of the same call has failed")));
}

void AnswerGroup::Ended(int32_t answer, RequestRecord record, ByteBudget::Lease memory) {
  MutexLock lock(mu_);
  kept_.push_back(std::move(memory));
  ended_.emplace(answer, std::move(record));
  changed_.Notify();
}

// Shares of answers that did not come are given back before the client hears of the end.
absl::Status AnswerGroup::Close() {
  MutexLock lock(mu_);
  shares_.clear();
  return failure_;
}

RequestRecord AnswerGroup::Record(const absl::Status& status) const {
  MutexLock lock(mu_);
  RequestRecord record = ended_.at(0);
  record.status = status;
  record.answers = answers_;
  for (const auto& [answer, of_answer] : ended_) {
    if (answer == 0) continue;
    record.generated_tokens += of_answer.generated_tokens;
    record.failovers += of_answer.failovers;
    record.total = std::max(record.total, of_answer.total);
  }
  return record;
}

}  // namespace runahead
