#include "client/bench/router_door.h"

#include <utility>

#include "server/rpc/channel.h"
#include "server/rpc/status.h"

namespace runahead {

v1::GenerateRequest ToGenerateRequest(const BenchRequest& request, const std::string& model) {
  v1::GenerateRequest wire;
  wire.set_model(model);
  if (!request.ids.empty()) wire.mutable_token_ids()->mutable_ids()->Add(request.ids.begin(), request.ids.end());
  if (!request.prompt.empty()) wire.set_prompt(request.prompt);
  for (const BenchMessage& message : request.messages) {
    v1::ChatMessage& added = *wire.mutable_chat()->add_messages();
    added.set_role(message.role);
    added.set_content(message.content);
  }
  wire.mutable_sampling()->set_temperature(0);
  wire.mutable_stop()->set_max_tokens(request.max_tokens);
  wire.mutable_stop()->set_ignore_eos(request.ignore_eos);
  return wire;
}

// Held by the door until gRPC is done with it.
class RouterDoor::Call final : public grpc::ClientReadReactor<v1::GenerateResponse>,
                               public std::enable_shared_from_this<Call> {
 public:
  Call(RouterDoor& door, v1::GenerateRequest request, std::shared_ptr<AnswerHearer> hearer)
      : door_(door), request_(std::move(request)), hearer_(std::move(hearer)) {
    SetTimeout(context_, door.timeout_);
  }

  void Start(Stub& stub) {
    stub.async()->Generate(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }
  void Cancel() { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (response_.has_started()) counts_.input_tokens = response_.started().prompt_tokens();
    if (response_.has_tokens() && response_.tokens().ids_size() > 0) hearer_->OnTokens(response_.tokens().ids_size());
    if (response_.has_finished()) {
      finished_ = true;
      if (response_.finished().has_usage()) Take(response_.finished().usage());
    }
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override {
    absl::Status end = FromGrpcStatus(status);
    if (end.ok() && !finished_) end = absl::InternalError("the stream ended without `finished`");
    hearer_->OnEnd(end, counts_);
    door_.Ended(shared_from_this());
  }
  void Take(const v1::Usage& usage) {
    counts_ = {usage.prompt_tokens(), usage.completion_tokens(), usage.cached_prompt_tokens()};
  }

  RouterDoor& door_;
  const v1::GenerateRequest request_;
  const std::shared_ptr<AnswerHearer> hearer_;
  grpc::ClientContext context_;
  v1::GenerateResponse response_;
  AnswerCounts counts_;
  bool finished_ = false;
};

RouterDoor::RouterDoor(std::vector<std::unique_ptr<Stub>> stubs, std::string model, absl::Duration timeout)
    : stubs_(std::move(stubs)), model_(std::move(model)), timeout_(timeout) {}

RouterDoor::~RouterDoor() {
  Cancel();
  MutexLock lock(mu_);
  while (!running_.empty()) changed_.Wait(mu_);
}

void RouterDoor::Ask(const BenchRequest& request, std::shared_ptr<AnswerHearer> hearer) {
  const auto call = std::make_shared<Call>(*this, ToGenerateRequest(request, model_), hearer);
  Stub* stub = nullptr;
  {
    MutexLock lock(mu_);
    if (!cancelled_) {
      running_.insert(call);
      stub = stubs_[next_stub_++ % stubs_.size()].get();
    }
  }
  if (stub == nullptr) return hearer->OnEnd(absl::CancelledError("cancelled"), {});
  call->Start(*stub);
}

// A call may end within TryCancel, on this thread.
void RouterDoor::Cancel() {
  absl::flat_hash_set<std::shared_ptr<Call>> running;
  {
    MutexLock lock(mu_);
    cancelled_ = true;
    running = running_;
  }
  for (const auto& call : running) call->Cancel();
}

void RouterDoor::Ended(const std::shared_ptr<Call>& call) {
  MutexLock lock(mu_);
  running_.erase(call);
  changed_.NotifyAll();
}

}  // namespace runahead
