#include "server/router/request_log.h"

#include "absl/strings/str_format.h"
#include "server/base/logging.h"
#include "server/base/printable.h"
#include "server/base/random.h"

namespace runahead {
namespace {

std::string NameOf(v1::FinishReason reason) {
  return reason == v1::FINISH_REASON_STOP ? "stop" : "length";
}

void AddPlan(const v1::Plan& plan, std::vector<LogField>& fields) {
  fields.push_back({"schedule", plan.schedule()});
  fields.push_back({"workers", std::vector<std::string>(plan.workers().begin(), plan.workers().end())});
  fields.push_back({"parts", std::vector<int64_t>(plan.parts().begin(), plan.parts().end())});
  if (!plan.decode_worker().empty()) fields.push_back({"decode_worker", plan.decode_worker()});
  if (plan.known_tokens() > 0) fields.push_back({"known_tokens", int64_t{plan.known_tokens()}});
}

}  // namespace

std::string DrawRequestId() {
  return absl::StrFormat("%016x", RandomBits64());
}

std::string LoggedPrompt(const std::string& text) {
  return FirstCharacters(text, kLoggedPromptCharacters);
}

void LogRequest(const RequestRecord& record) {
  if (!LogEnabled(LogLevel::kInfo)) return;
  std::vector<LogField> fields;
  fields.push_back({"request_id", record.request_id});
  if (!record.trace_id.empty()) fields.push_back({"trace_id", record.trace_id});
  if (!record.tenant.empty()) fields.push_back({"tenant", record.tenant});
  if (!record.user.empty()) fields.push_back({"user", record.user});
  fields.push_back({"code", absl::StatusCodeToString(record.status.code())});
  if (record.finish_reason != v1::FINISH_REASON_UNSPECIFIED) {
    fields.push_back({"finish_reason", NameOf(record.finish_reason)});
  }
  if (!record.plan.schedule().empty()) AddPlan(record.plan, fields);
  if (record.answers > 1) fields.push_back({"answers", int64_t{record.answers}});
  fields.push_back({"prompt_tokens", record.prompt_tokens});
  fields.push_back({"generated_tokens", record.generated_tokens});
  if (record.ttft > absl::ZeroDuration()) fields.push_back({"ttft_s", absl::ToDoubleSeconds(record.ttft)});
  if (record.tpot > absl::ZeroDuration()) fields.push_back({"tpot_s", absl::ToDoubleSeconds(record.tpot)});
  fields.push_back({"total_s", absl::ToDoubleSeconds(record.total)});
  if (!record.stages.empty()) fields.push_back({"stages", record.stages});
  fields.push_back({"failovers", int64_t{record.failovers}});
  if (!record.prompt.empty()) fields.push_back({"prompt", record.prompt});
  if (!record.status.ok()) fields.push_back({"error", std::string(record.status.message())});
  Log(LogLevel::kInfo, "session", "request", fields);
}

}  // namespace runahead
