#include "server/engine/engine_generate.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/generate_mapping.h"
#include "server/rpc/status.h"

namespace runahead {

namespace engine = vllm::grpc::engine;

namespace {

// Answers come and go within about this time.
constexpr absl::Duration kAnswersGoAfter = absl::Seconds(1);

}  // namespace

// The call of the public service. It lives until gRPC is done with it.
class EngineGenerate::Upstream final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  Upstream(std::shared_ptr<EngineGenerate> owner, v1::GenerateRequest request)
      : owner_(std::move(owner)), request_(std::move(request)) {
    owner_->caller_.Describe(context_);
  }

  // `itself` is what keeps it.
  void Start(v1::Inference::StubInterface& stub, std::shared_ptr<Upstream> itself) {
    itself_ = std::move(itself);
    stub.async()->Generate(&context_, &request_, this);
    AddHold();  // for reads that begin outside of a reaction; given back behind the last one
    StartRead(&response_);
    StartCall();
  }
  void ReadNext() { StartRead(&response_); }
  void Cancel() { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return RemoveHold();
    request_ = v1::GenerateRequest();  // it was sent, and is counted no more from now on
    owner_->Came(response_);
  }
  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<EngineGenerate> owner = std::move(owner_);  // the first, so that it ends last
    const std::shared_ptr<Upstream> itself = std::move(itself_);
    owner->Ended(status);
  }

  std::shared_ptr<EngineGenerate> owner_;
  std::shared_ptr<Upstream> itself_;
  v1::GenerateRequest request_;  // until the first answer
  grpc::ClientContext context_;
  v1::GenerateResponse response_;
};

std::shared_ptr<EngineGenerate> EngineGenerate::Create(grpc::CallbackServerContext& context, Holds holds) {
  std::shared_ptr<EngineGenerate> call(new EngineGenerate(context, std::move(holds)));
  MutexLock lock(call->mu_);
  call->itself_ = call;
  return call;
}

EngineGenerate::EngineGenerate(grpc::CallbackServerContext& context, Holds holds)
    : open_(holds.open),
      clock_(holds.clock),
      caller_(context),
      memory_(std::move(holds.memory)),
      context_(&context),
      pass_(std::move(holds.pass)) {}

void EngineGenerate::Start(engine::GenerateRequest& request, v1::Inference::StubInterface& stub) {
  name_ = request.request_id();
  absl::StatusOr<v1::GenerateRequest> mapped = ToPublicRequest(request);
  if (!mapped.ok()) return End(ToGrpcStatus(mapped.status()));
  answer_.emplace(request.stream(), *mapped);
  const auto upstream = std::make_shared<Upstream>(shared_from_this(), *std::move(mapped));
  {
    MutexLock lock(mu_);
    upstream_ = upstream;
  }
  open_.Add(name_, shared_from_this());  // who finds it may cancel the call, which keeps that until it begins
  upstream->Start(stub, upstream);
}

// The call goes on reading in any case: the read that fails is what ends it.
void EngineGenerate::Came(const v1::GenerateResponse& event) {
  absl::StatusOr<std::optional<engine::GenerateResponse>> told = answer_->Add(event);
  if (told.ok()) {
    if (const absl::Status taken = TakeAnswerMemory(); !taken.ok()) told = taken;
  }
  if (!told.ok()) Fail(told.status());
  std::shared_ptr<Upstream> upstream;
  {
    MutexLock lock(mu_);
    upstream = upstream_;
  }
  if (told.ok() && BeginWrite(*std::move(told))) return;
  upstream->ReadNext();
}

bool EngineGenerate::BeginWrite(std::optional<engine::GenerateResponse> told) {
  MutexLock lock(mu_);
  if (!told || !failure_.ok()) return false;
  writing_ = *std::move(told);
  write_began_ = clock_.Now();
  StartWrite(&writing_);
  return true;
}

absl::Status EngineGenerate::TakeAnswerMemory() {
  if (memory_.Resize(answer_->bytes())) return absl::OkStatus();
  return WithRetryAfter(absl::ResourceExhaustedError(absl::StrCat(
                            "there is no memory left for what is kept of the answer; ", answer_->WayToLess())),
                        kAnswersGoAfter);
}

void EngineGenerate::OnWriteDone(bool ok) {
  std::shared_ptr<Upstream> upstream;
  {
    MutexLock lock(mu_);
    write_began_.reset();
    upstream = upstream_;
  }
  if (!ok) {
    upstream->Cancel();
  } else if (BeginWrite(answer_->Next())) {
    return;
  }
  upstream->ReadNext();
}

void EngineGenerate::OnCancel() {
  CancelUpstream();
}

void EngineGenerate::Fail(const absl::Status& why) {
  {
    MutexLock lock(mu_);
    if (failure_.ok()) failure_ = why;
  }
  CancelUpstream();
}

void EngineGenerate::CancelUpstream() {
  std::shared_ptr<Upstream> upstream;
  {
    MutexLock lock(mu_);
    upstream = upstream_;
  }
  if (upstream != nullptr) upstream->Cancel();
}

void EngineGenerate::CutIfStalled(absl::Time now, absl::Duration timeout) {
  {
    MutexLock lock(mu_);
    if (context_ == nullptr || !write_began_ || now - *write_began_ < timeout) return;
    context_->TryCancel();
  }
  Fail(absl::CancelledError(absl::StrCat("the client has taken nothing for ", absl::FormatDuration(timeout))));
}

void EngineGenerate::Abort(const EngineCaller& caller, const absl::Status& why) {
  if (caller_.HasKeyOf(caller)) Fail(why);
}

void EngineGenerate::Ended(const grpc::Status& status) {
  open_.Remove(name_, shared_from_this());
  grpc::Status end = status;
  {
    MutexLock lock(mu_);
    upstream_.reset();
    if (!failure_.ok()) end = ToGrpcStatus(failure_);
  }
  End(end);
}

void EngineGenerate::End(const grpc::Status& status) {
  answer_.reset();
  memory_ = {};  // before the client hears
  Finish(status);
}

void EngineGenerate::OnDone() {
  std::shared_ptr<EngineGenerate> last;  // the end of it, after the lock is given back
  MutexLock lock(mu_);
  last = std::move(itself_);
  context_ = nullptr;
  pass_ = DrainGate::Pass();
}

}  // namespace runahead
