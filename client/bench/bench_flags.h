// The command line of `runahead bench`, and the load that it stands for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/base/router_flags.h"
#include "client/bench/bench_request.h"
#include "client/bench/load_run.h"
#include "client/bench/objectives.h"
#include "client/bench/openai_door.h"
#include "client/bench/workload.h"

namespace CLI {
class App;
}

namespace runahead {

// What is to be sent, to whom, and how.
struct BenchPlan {
  std::optional<ServerUrl> url;         // nothing: the router of the flags
  WorkloadOptions workload;             // of made prompts, and of the warm-up's in any case
  std::vector<BenchRequest> from_file;  // empty: prompts are made
  bool chat = false;
  bool ids = false;  // over HTTP: made prompts are ids
  LoadOptions load;
  int64_t warmup = 1;  // requests before the load, which count nowhere
  double rate = 0;     // may be infinite
  Objectives objectives;
  absl::Duration timeout;  // of a request
};

// The most requests that may be under way: each holds a descriptor, where it goes over HTTP.
inline constexpr int32_t kMostConcurrency = 4096;

class BenchFlags {
 public:
  // Keeps references into *this.
  void AddTo(CLI::App& app);

  // After parsing: INVALID_ARGUMENT names the flag and what is wrong with it. Reads --file; draws a seed where none is
  // given.
  absl::StatusOr<BenchPlan> Read() const;

  const RouterFlags& router() const { return router_; }
  const std::string& url() const { return url_; }
  const std::string& model() const { return model_; }
  bool json() const { return json_.has_value(); }
  std::string json_file() const { return json_.value_or(""); }  // empty: none
  bool force() const { return force_; }
  bool fail_on_error() const { return fail_on_error_; }
  std::string PromptsText(const BenchPlan& plan) const;  // what is sent, in words

 private:
  absl::Status ReadDoor(BenchPlan& plan) const;
  absl::Status ReadWorkload(BenchPlan& plan) const;
  absl::Status ReadFile(BenchPlan& plan) const;
  absl::Status ReadLoad(BenchPlan& plan) const;

  RouterFlags router_;
  std::string url_, model_, file_, objectives_;
  std::string input_tokens_ = "256", output_tokens_ = "128";
  std::optional<std::string> json_;
  std::optional<int32_t> prompts_, shared_prefix_, concurrency_, warmup_;
  std::optional<uint64_t> seed_;
  std::optional<double> rate_, duration_s_, timeout_s_;
  bool ignore_eos_ = false, no_ignore_eos_ = false;
  bool ids_ = false, chat_ = false, force_ = false, fail_on_error_ = false;
};

}  // namespace runahead
