// What a server of the OpenAI API says while it streams an answer. Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/bench/bench_door.h"

namespace runahead {

// Reads the events of one answer, of /completions or /chat/completions. Used by one thread.
class OpenAiStream {
 public:
  // The data of one event: whether it brought a token or more. Text counts as such, also what a chat's model thinks and
  // the calls that it makes; not a chat's role. INTERNAL: the data is no JSON object, or one that says what failed.
  absl::StatusOr<bool> Add(absl::string_view data);

  // Nothing more comes. UNAVAILABLE: the stream was cut, for no [DONE] has come.
  absl::Status End() const;

  // What `usage` said so far.
  const AnswerCounts& counts() const { return counts_; }

 private:
  bool done_ = false;
  AnswerCounts counts_;
};

// What an answer that is no stream means: RESOURCE_EXHAUSTED for 429, UNAVAILABLE for 503, ... The message has the
// number and what `body` says, in one line.
absl::Status HttpFailure(int status, absl::string_view body);

}  // namespace runahead
