// What the gateway knows of the router's model.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/inference.grpc.pb.h"
#include "server/base/clock.h"
#include "server/gateway/call_context.h"
#include "server/gateway/openai/calls.h"

namespace runahead {

// The gateway has no API key of its own: the router is asked in the name of who calls. Thread-safe; outlives its calls.
class ServedModel {
 public:
  struct Known {
    DoorFacts facts;
    int context_length = 0;
  };

  // `stub` and `clock` outlive it.
  ServedModel(v1::Inference::StubInterface& stub, std::vector<std::string> aliases, Clock& clock);

  // Calls `then` with what is known: at once where something is, else with what the router says. What is old is asked
  // anew meanwhile.
  void With(const std::shared_ptr<CallContext>& context, std::function<void(absl::StatusOr<Known>)> then)
      RUNAHEAD_EXCLUDES(mu_);
  // Asks the router in any case.
  void Ask(const std::shared_ptr<CallContext>& context,
           std::function<void(absl::StatusOr<v1::ListModelsResponse>)> then) RUNAHEAD_EXCLUDES(mu_);

  const std::vector<std::string>& aliases() const { return aliases_; }

 private:
  Known Learn(const v1::ListModelsResponse& response) RUNAHEAD_EXCLUDES(mu_);

  v1::Inference::StubInterface& stub_;
  const std::vector<std::string> aliases_;
  Clock& clock_;
  Mutex mu_;
  std::optional<Known> known_ RUNAHEAD_GUARDED_BY(mu_);
  absl::Time asked_at_ RUNAHEAD_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace runahead
