// The command line of `runahead generate`, and the request that it stands for.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/base/router_flags.h"
#include "client/generate/sampling_flags.h"
#include "client/generate/structure_flags.h"
#include "client/generate/template_flags.h"
#include "runahead/v1/inference.pb.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace runahead {

class GenerateFlags {
 public:
  // Keeps references into *this.
  void AddTo(CLI::App& app);

  // After parsing: INVALID_ARGUMENT names the flag and what is wrong with it. Reads --prompt-file, --tools and the
  // files of the answer's form.
  absl::StatusOr<v1::GenerateRequest> Request() const;

  // Of the whole call; infinite without --timeout. INVALID_ARGUMENT unless it is above 0.
  absl::StatusOr<absl::Duration> Timeout() const;

  const RouterFlags& router() const { return router_; }
  std::string tenant() const { return tenant_.value_or(""); }  // empty: the request is nobody's
  bool json() const { return json_; }
  bool trace() const { return trace_; }

 private:
  absl::Status FillInput(v1::GenerateRequest& request) const;
  absl::Status FillExperiment(v1::GenerateRequest& request) const;

  RouterFlags router_;
  std::string model_;
  std::string priority_ = "normal", user_, request_id_;
  std::optional<std::string> tenant_, prompt_, prompt_file_, token_ids_, parts_, schedule_;
  std::vector<std::string> messages_;
  TemplateFlags template_;
  SamplingFlags sampling_;
  StructureFlags structure_;
  std::optional<int32_t> logprobs_, prompt_logprobs_, width_, truncate_prompt_, n_;
  std::optional<double> timeout_s_;
  bool json_ = false, trace_ = false;
};

}  // namespace runahead
