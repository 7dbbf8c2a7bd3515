#include "server/gateway/generation.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

constexpr char kDone[] = "data: [DONE]\n\n";
constexpr char kComment[] = ": waiting\n\n";

std::string EventText(const std::vector<std::string>& events) {
  std::string text;
  for (const std::string& event : events) absl::StrAppend(&text, "data: ", event, "\n\n");
  return text;
}

// Each choice has its prompt twice: what is echoed, and what its tokens are compared with.
int64_t EchoBytes(const OpenAiCalls& calls) {
  int64_t bytes = 0;
  if (!calls.echo) return bytes;
  for (const v1::GenerateRequest& call : calls.calls) bytes += static_cast<int64_t>(call.prompt().size());
  return 2 * bytes * calls.choices_per_prompt;
}

// Of what is said of a prompt's tokens. The list that vLLM has names its members for each of them, in four times the
// bytes of the message.
int64_t PromptCopies(const OpenAiCalls& calls) {
  constexpr int64_t kListBytes = 4;
  const int64_t lists = !calls.prompt_logprobs.has_value() ? 0 : calls.chat ? 1 : calls.choices_per_prompt;
  return calls.choices_per_prompt + kListBytes * lists;
}

absl::Status NoMemoryLeft(bool lists_prompt) {
  return absl::ResourceExhaustedError(
      absl::StrCat("there is no memory left for answers that are sent whole; ",
                   lists_prompt ? "ask for fewer prompt_logprobs, answers or prompts" : "ask for a stream"));
}

}  // namespace

// One call to the router. It lives until gRPC is done with it.
class Generation::Call final : public grpc::ClientReadReactor<v1::GenerateResponse>,
                               public std::enable_shared_from_this<Call> {
 public:
  Call(std::shared_ptr<Generation> owner, int prompt, v1::GenerateRequest request)
      : owner_(std::move(owner)), prompt_(prompt), request_(std::move(request)) {
    owner_->context_->Describe(context_);
  }

  void Start(v1::Inference::StubInterface& stub) {
    itself_ = shared_from_this();
    stub.async()->Generate(&context_, &request_, this);
    AddHold();  // for reads that begin outside of a reaction; given back behind the last one
    StartRead(&response_);
    StartCall();
  }

  int prompt() const { return prompt_; }
  void ReadNext() { StartRead(&response_); }
  void Cancel() { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return RemoveHold();
    owner_->Came(*this, response_);
  }
  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<Generation> owner = std::move(owner_);  // the first, so that it ends last
    const std::shared_ptr<Call> itself = std::move(itself_);
    owner->Ended(prompt_, FromGrpcStatus(status));
  }

  std::shared_ptr<Generation> owner_;
  std::shared_ptr<Call> itself_;
  const int prompt_;  // which of the request's
  const v1::GenerateRequest request_;
  grpc::ClientContext context_;
  v1::GenerateResponse response_;
};

void Generation::Start(std::shared_ptr<CallContext> context, OpenAiCalls calls, v1::Inference::StubInterface& stub,
                       absl::Duration quiet_time, ByteBudget& memory, GatewayMetrics& metrics) {
  ByteBudget::Lease held = memory.None();
  if (!held.Resize(EchoBytes(calls))) {
    return context->Fail(NoMemoryLeft(calls.prompt_logprobs.has_value()));
  }
  const std::shared_ptr<Generation> generation(
      new Generation(std::move(context), calls, quiet_time, std::move(held), metrics));
  std::vector<std::shared_ptr<Call>> started;
  for (size_t i = 0; i < calls.calls.size(); ++i) {
    v1::GenerateRequest& request = calls.calls[i];
    const std::string& id = generation->context_->request_id();
    request.set_request_id(i == 0 ? id : absl::StrCat(id.substr(0, 120), "-", i));
    started.push_back(std::make_shared<Call>(generation, static_cast<int>(i), std::move(request)));
  }
  {
    MutexLock lock(generation->mu_);
    generation->calls_.assign(started.begin(), started.end());
    generation->running_ = static_cast<int>(started.size());
  }
  generation->context_->OnGone([weak = generation->weak_from_this()] {
    if (const auto held = weak.lock()) held->Gone();
  });
  generation->WaitQuietly();
  for (const auto& call : started) call->Start(stub);
}

Generation::Generation(std::shared_ptr<CallContext> context, const OpenAiCalls& calls, absl::Duration quiet_time,
                       ByteBudget::Lease memory, GatewayMetrics& metrics)
    : context_(std::move(context)),
      stream_(calls.stream),
      sent_(calls.sent),
      listed_prompts_(calls.listed_prompts),
      quiet_time_(quiet_time),
      lists_prompt_(calls.prompt_logprobs.has_value()),
      prompt_copies_(PromptCopies(calls)),
      metrics_(metrics),
      answer_(MakeAnswer(calls, absl::StrCat(calls.chat ? "chatcmpl-" : "cmpl-", context_->request_id()),
                         absl::ToUnixSeconds(absl::Now()))),
      memory_(std::move(memory)) {}

// The call goes on reading in any case: the read that fails is what ends it.
void Generation::Came(Call& call, const v1::GenerateResponse& response) {
  std::string text;
  {
    MutexLock lock(mu_);
    if (!ended_) {
      if (response.has_tokens()) spoke_ = true;
      const std::vector<std::string> events = answer_->Add(call.prompt(), response);
      const int64_t copies = response.has_prompt_logprobs() ? prompt_copies_ : 1;
      if (!stream_ && !memory_.Resize(memory_.bytes() + copies * static_cast<int64_t>(response.ByteSizeLong()))) {
        Fail(NoMemoryLeft(lists_prompt_), sent_);
      }
      metrics_.streamed.Increment(static_cast<double>(events.size()));
      text = EventText(events);
      if (!text.empty()) Begin();
    }
  }
  if (text.empty()) return call.ReadNext();
  context_->SendEvents(std::move(text), [held = call.shared_from_this()] { held->ReadNext(); });
}

void Generation::Ended(int prompt, const absl::Status& status) {
  MutexLock lock(mu_);
  --running_;
  if (ended_) return;
  if (!status.ok()) {
    SentMembers sent = sent_;
    if (listed_prompts_) sent.prompt = absl::StrCat("prompt[", prompt, "]");
    return Fail(status, sent);
  }
  if (running_ == 0) Finish();
}

void Generation::Gone() {
  MutexLock lock(mu_);
  if (ended_) return;
  ended_ = true;
  metrics_.gone.Increment();
  CancelAll();
}

void Generation::WaitQuietly() {
  if (!stream_) return;
  context_->WakeAfter(quiet_time_, [weak = weak_from_this()] {
    if (const auto held = weak.lock()) held->SayQuiet();
  });
}

void Generation::SayQuiet() {
  {
    MutexLock lock(mu_);
    if (ended_ || spoke_) return;
    Begin();
    context_->SendEvents(kComment, [] {});  // under the lock: not behind a token that comes now
  }
  WaitQuietly();
}

void Generation::Begin() {
  if (begun_) return;
  begun_ = true;
  context_->BeginEvents();
}

void Generation::Fail(const absl::Status& status, const SentMembers& sent) {
  ended_ = true;
  if (begun_) {
    context_->EndEvents(absl::StrCat("data: ", ToOpenAiError(status, sent).body, "\n\n", kDone));
  } else {
    context_->Fail(status, sent);
  }
  CancelAll();
}

void Generation::Finish() {
  if (!answer_->IsComplete()) {
    return Fail(
        absl::UnimplementedError("the router answered a part of the request only: it is older than this gateway"),
        sent_);
  }
  ended_ = true;
  const std::vector<std::string> last = answer_->Finish();
  if (!stream_) return context_->Reply(last.empty() ? "{}" : last.front());
  Begin();
  context_->EndEvents(EventText(last) + kDone);
}

void Generation::CancelAll() {
  for (const std::weak_ptr<Call>& call : calls_) {
    if (const auto held = call.lock()) held->Cancel();
  }
}

}  // namespace runahead
