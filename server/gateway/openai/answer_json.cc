#include "server/gateway/openai/answer_json.h"

#include "absl/strings/str_cat.h"
#include "server/gateway/openai/json_text.h"

namespace runahead {
namespace {

std::string PlanJson(const v1::Plan& plan) {
  std::string workers;
  for (const std::string& worker : plan.workers()) AddToJson(workers, JsonString(worker));
  std::string parts;
  for (const int32_t part : plan.parts()) AddToJson(parts, absl::StrCat(part));
  return absl::StrCat("{\"schedule\":", JsonString(plan.schedule()), ",\"workers\":[", workers, "],\"parts\":[", parts,
                      "],\"decode_worker\":", JsonString(plan.decode_worker()),
                      ",\"known_tokens\":", plan.known_tokens(), "}");
}

// In the order in which a request passes them; the map has none.
std::string StagesJson(const v1::Timing& timing) {
  std::string stages;
  const auto add = [&stages](const std::string& name, double seconds) {
    AddToJson(stages, absl::StrCat(JsonString(name), ":", JsonNumber(seconds)));
  };
  for (const char* name : {"queue", "tokenize", "plan", "reserve", "worker_queue", "prefill", "first_token"}) {
    const auto found = timing.stages().find(name);
    if (found != timing.stages().end()) add(name, found->second);
  }
  return absl::StrCat("{", stages, "}");
}

}  // namespace

std::string UsageJson(const UsageSum& usage) {
  return absl::StrCat("{\"prompt_tokens\":", usage.prompt_tokens, ",\"completion_tokens\":", usage.completion_tokens,
                      ",\"total_tokens\":", usage.prompt_tokens + usage.completion_tokens,
                      ",\"prompt_tokens_details\":{\"cached_tokens\":", usage.cached_tokens, "}}");
}

std::string ServiceJson(const v1::Started& started, const v1::Finished& finished) {
  const v1::Timing& timing = finished.timing();
  return absl::StrCat("{\"request_id\":", JsonString(started.request_id()), ",\"seed\":", started.seed(),
                      ",\"ttft_s\":", JsonNumber(timing.ttft_s()), ",\"tpot_s\":", JsonNumber(timing.tpot_s()),
                      ",\"stages\":", StagesJson(timing), ",\"failovers\":", finished.failovers(),
                      ",\"plan\":", PlanJson(finished.has_plan() ? finished.plan() : started.plan()), "}");
}

}  // namespace runahead
