// Whether a request may wait. Pure: the queue's length is an argument.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace runahead {

// Requests that wait for a session or for workers are at most `queue_size`. OK when one more may wait behind `waiting`
// others, else RESOURCE_EXHAUSTED naming the limit.
inline absl::Status AdmitToQueue(int waiting, int queue_size) {
  if (waiting < queue_size) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the admission queue is full: ", waiting, " requests wait, queue_size is ", queue_size));
}

}  // namespace runahead
