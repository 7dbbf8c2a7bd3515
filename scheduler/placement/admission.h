// Whether a request may wait. Pure: the queue's length is an argument.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace runahead {

// Requests that wait for a session or for workers are at most `queue_size`. OK when one more may wait behind `waiting`
// others, else RESOURCE_EXHAUSTED naming the limit.
inline absl::Status AdmitToQueue(int waiting, int queue_size) {
  if (waiting < queue_size) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the admission queue is full: ", waiting, " requests wait, queue_size is ", queue_size));
}

// So many of them may be of one tenant, or of low priority: an eighth is for others.
inline int MostOfOneKind(int queue_size) {
  return queue_size - queue_size / 8;
}

// OK when one more of the kind may wait behind `waiting` others, which the error calls `others`.
inline absl::Status AdmitOfKind(absl::string_view kind, absl::string_view others, int waiting, int queue_size) {
  if (waiting < MostOfOneKind(queue_size)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the admission queue is full for ", kind, ": ", waiting, " ", others,
                                                   " wait, and of queue_size ", queue_size,
                                                   " an eighth is kept for others"));
}

// One more of a tenant of which `waiting` wait.
inline absl::Status AdmitTenant(int waiting, int queue_size) {
  return AdmitOfKind("this tenant", "of its requests", waiting, queue_size);
}

// One more of low priority, where `waiting` of any wait.
inline absl::Status AdmitLow(int waiting, int queue_size) {
  return AdmitOfKind("requests of low priority", "requests", waiting, queue_size);
}

}  // namespace runahead
