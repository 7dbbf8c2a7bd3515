// One request for text: its calls to the router, and their answers on the way to the client.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/inference.grpc.pb.h"
#include "server/base/byte_budget.h"
#include "server/gateway/call_context.h"
#include "server/gateway/openai/answer.h"
#include "server/gateway/openai/calls.h"
#include "server/gateway/openai/error.h"

namespace runahead {

// Held by its calls. One message of each call is on its way at a time: the next is read once the system has taken what
// the one before gave, so that a client that reads slowly slows its calls down, and takes no memory here.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // Starts all calls. `memory`, for answers that go out whole, outlives `context`. `quiet_time`: GatewayOptions.
  static void Start(std::shared_ptr<CallContext> context, OpenAiCalls calls, v1::Inference::StubInterface& stub,
                    absl::Duration quiet_time, ByteBudget& memory, GatewayMetrics& metrics);

 private:
  class Call;

  Generation(std::shared_ptr<CallContext> context, const OpenAiCalls& calls, absl::Duration quiet_time,
             ByteBudget::Lease memory, GatewayMetrics& metrics);
  void Came(Call& call, const v1::GenerateResponse& response) RUNAHEAD_EXCLUDES(mu_);
  void Ended(int prompt, const absl::Status& status) RUNAHEAD_EXCLUDES(mu_);
  void Gone() RUNAHEAD_EXCLUDES(mu_);
  void SayQuiet() RUNAHEAD_EXCLUDES(mu_);
  void WaitQuietly();
  void Begin() RUNAHEAD_REQUIRES(mu_);
  void Fail(const absl::Status& status, const SentMembers& sent) RUNAHEAD_REQUIRES(mu_);
  void Finish() RUNAHEAD_REQUIRES(mu_);
  void CancelAll() RUNAHEAD_REQUIRES(mu_);

  const std::shared_ptr<CallContext> context_;
  const bool stream_;
  const SentMembers sent_;
  const bool listed_prompts_;
  const absl::Duration quiet_time_;
  const bool lists_prompt_;
  const int64_t prompt_copies_;  // that are kept of what is said of a prompt's tokens
  GatewayMetrics& metrics_;
  Mutex mu_;
  std::unique_ptr<OpenAiAnswer> answer_ RUNAHEAD_GUARDED_BY(mu_);
  ByteBudget::Lease memory_ RUNAHEAD_GUARDED_BY(mu_);  // of echoed prompts, and of an answer that goes out whole
  std::vector<std::weak_ptr<Call>> calls_ RUNAHEAD_GUARDED_BY(mu_);
  int running_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  bool begun_ RUNAHEAD_GUARDED_BY(mu_) = false;  // of a stream: 200 is said
  bool spoke_ RUNAHEAD_GUARDED_BY(mu_) = false;  // a token has come
  bool ended_ RUNAHEAD_GUARDED_BY(mu_) = false;  // the client has its answer, or is gone
};

}  // namespace runahead
