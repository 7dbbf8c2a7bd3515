// The line that the router's log has of each request.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runahead/v1/inference.pb.h"

namespace runahead {

// So many characters of a prompt are logged where that is asked for (log_prompts).
inline constexpr int kLoggedPromptCharacters = 1000;

// What came of a request. What was not come to is left as it is here.
struct RequestRecord {
  std::string request_id;
  std::string trace_id;  // empty: it is of no trace
  std::string tenant;    // empty: nobody's by name
  std::string user;      // empty: the client named none
  absl::Status status;   // as the client was told
  v1::Plan plan;         // no schedule: none was begun
  v1::FinishReason finish_reason = v1::FINISH_REASON_UNSPECIFIED;
  int64_t prompt_tokens = 0, generated_tokens = 0;
  int failovers = 0;
  int32_t answers = 1;  // to the prompt; all else that is of one answer is of answer 0, but for tokens and failovers
  std::vector<std::pair<std::string, double>> stages;  // seconds, in their order
  absl::Duration ttft;                                 // 0: no token was generated
  absl::Duration tpot;                                 // 0: no second one
  absl::Duration total;                                // from arrival until the answer was complete
  std::string prompt;                                  // empty unless it is to be logged: see LoggedPrompt
};

// An id for a request that comes without one.
std::string DrawRequestId();

// The first kLoggedPromptCharacters of `text`.
std::string LoggedPrompt(const std::string& text);

// Writes it, at level info: message "request", and a field for each of these (docs/operations.md#logs).
void LogRequest(const RequestRecord& record);

}  // namespace runahead
