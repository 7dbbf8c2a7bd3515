#include "client/generate/answers_printer.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace runahead {

void AnswersPrinter::Take(v1::GenerateResponse response) {
  const int32_t number = AnswerOf(response);
  const bool ends = response.has_finished();
  GenerateResult& answer = open_[number];
  answer.answer = number;
  answer.trace_id = trace_id_;
  Add(std::move(response), answer);
  request_id_ = answer.started.request_id();
  if (!ends) return;
  Show(answer, "");
  open_.erase(number);
}

void AnswersPrinter::End() {
  for (const auto& [number, answer] : open_) {
    if (!json_ && !answer.text.empty()) Show(answer, ", not whole");
  }
  open_.clear();
}

void AnswersPrinter::Show(const GenerateResult& answer, const char* how) {
  if (json_) {
    out_ << ResultJson(answer) << "\n" << std::flush;
    return;
  }
  out_ << "--- answer " << *answer.answer << ", seed " << answer.started.seed() << how << "\n" << answer.text << "\n";
  out_ << LogprobsText(answer) << std::flush;
  if (*how == '\0') notes_ << "answer " << *answer.answer << ": " << SummaryLine(answer) << "\n";
}

}  // namespace runahead
