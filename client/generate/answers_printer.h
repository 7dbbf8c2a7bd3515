// Several answers to one prompt, for people and for programs.
#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <string>

#include "client/generate/generate_result.h"
#include "runahead/v1/inference.pb.h"

namespace runahead {

// Shows each answer whole when it ends, under a header that says which one it is; as `json` a line with ResultJson. So
// none is among the words of another. For one thread.
class AnswersPrinter {
 public:
  // Answers go to `out`, a summary of each to `notes`, which outlive it. `trace_id` as GenerateResult's.
  AnswersPrinter(bool json, std::string trace_id, std::ostream& out, std::ostream& notes)
      : json_(json), trace_id_(std::move(trace_id)), out_(out), notes_(notes) {}

  // One message of the stream.
  void Take(v1::GenerateResponse response);
  // The stream has ended: of answers that have not, what came is shown, too, but not as `json`.
  void End();

  // The call's, once something came; else "".
  const std::string& request_id() const { return request_id_; }

 private:
  void Show(const GenerateResult& answer, const char* how);

  const bool json_;
  const std::string trace_id_;
  std::ostream& out_;
  std::ostream& notes_;
  std::string request_id_;
  std::map<int32_t, GenerateResult> open_;  // that have not ended
};

}  // namespace runahead
