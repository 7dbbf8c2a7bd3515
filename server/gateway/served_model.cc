#include "server/gateway/served_model.h"

#include <utility>

#include "server/gateway/unary_call.h"

namespace runahead {
namespace {

constexpr absl::Duration kOld = absl::Seconds(10);

}  // namespace

ServedModel::ServedModel(v1::Inference::StubInterface& stub, std::vector<std::string> aliases, Clock& clock)
    : stub_(stub), aliases_(std::move(aliases)), clock_(clock) {}

void ServedModel::With(const std::shared_ptr<CallContext>& context, std::function<void(absl::StatusOr<Known>)> then) {
  std::optional<Known> known;
  bool old = false;
  {
    MutexLock lock(mu_);
    known = known_;
    const absl::Time now = clock_.Now();
    old = now - asked_at_ >= kOld;
    if (known && old) asked_at_ = now;
  }
  if (known && old) Ask(context, [](const auto&) {});
  if (known) return then(*std::move(known));
  Ask(context, [this, then = std::move(then)](absl::StatusOr<v1::ListModelsResponse> response) {
    if (!response.ok()) return then(response.status());
    then(Learn(*response));
  });
}

void ServedModel::Ask(const std::shared_ptr<CallContext>& context,
                      std::function<void(absl::StatusOr<v1::ListModelsResponse>)> then) {
  CallUnary<v1::ListModelsRequest, v1::ListModelsResponse>(
      context, {},
      [this](grpc::ClientContext* call, const v1::ListModelsRequest* request, v1::ListModelsResponse* response,
             std::function<void(grpc::Status)> done) {
        stub_.async()->ListModels(call, request, response, std::move(done));
      },
      [this, then = std::move(then)](absl::StatusOr<v1::ListModelsResponse> response) {
        if (response.ok()) Learn(*response);
        then(std::move(response));
      });
}

ServedModel::Known ServedModel::Learn(const v1::ListModelsResponse& response) {
  Known known;
  known.facts.aliases = aliases_;
  if (!response.models().empty()) {
    known.facts.model = response.models(0).name();
    known.facts.tool_format = response.models(0).tool_format();
    known.facts.reasoning_format = response.models(0).reasoning_format();
    known.facts.recommended = response.models(0).recommended();
    known.context_length = response.models(0).context_length();
  }
  MutexLock lock(mu_);
  asked_at_ = clock_.Now();
  if (!known.facts.model.empty()) known_ = known;
  return known;
}

}  // namespace runahead
