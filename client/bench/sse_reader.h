// Server-sent events, however their bytes are cut.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace runahead {

// Of one stream. Used by one thread.
class SseReader {
 public:
  // Above any event of an answer; who sends more means us no good.
  static constexpr size_t kMostEventBytes = size_t{4} << 20;

  // Hears the data of an event: its data lines with newlines between them. What is not OK ends the reading.
  using OnData = std::function<absl::Status(absl::string_view data)>;

  // Takes in what has come. Lines end with LF, CR or both; comments, and fields other than data, are left out; so are
  // events without data, and one that is cut by the stream's end. INVALID_ARGUMENT: an event is too large, or what
  // `on_data` said.
  absl::Status Feed(absl::string_view bytes, const OnData& on_data);

 private:
  absl::Status TakeLine(const OnData& on_data);

  std::string line_;  // as far as it has come
  std::string data_;  // of the event that is being read, with a newline behind each line
  bool has_data_ = false;
  bool after_return_ = false;  // a newline that comes next belongs to the CR before it
};

}  // namespace runahead
