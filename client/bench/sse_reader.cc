#include "client/bench/sse_reader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"

namespace runahead {

absl::Status SseReader::Feed(absl::string_view bytes, const OnData& on_data) {
  while (!bytes.empty()) {
    if (std::exchange(after_return_, false) && absl::ConsumePrefix(&bytes, "\n")) continue;
    const size_t end = bytes.find_first_of("\r\n");
    const absl::string_view piece = bytes.substr(0, end);
    if (line_.size() + data_.size() + piece.size() > kMostEventBytes) {
      return absl::InvalidArgumentError(absl::StrCat("an event has more than ", kMostEventBytes, " bytes"));
    }
    line_.append(piece.data(), piece.size());
    if (end == absl::string_view::npos) break;
    after_return_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    RUNAHEAD_RETURN_IF_ERROR(TakeLine(on_data));
  }
  return absl::OkStatus();
}

absl::Status SseReader::TakeLine(const OnData& on_data) {
  const std::string line = std::exchange(line_, {});
  absl::string_view rest = line;
  if (rest.empty()) {
    std::string data = std::exchange(data_, {});
    if (!std::exchange(has_data_, false)) return absl::OkStatus();
    data.pop_back();  // the newline of the last line
    return on_data(data);
  }
  if (!absl::ConsumePrefix(&rest, "data")) return absl::OkStatus();
  if (!rest.empty() && !absl::ConsumePrefix(&rest, ":")) return absl::OkStatus();  // a field whose name is longer
  absl::ConsumePrefix(&rest, " ");
  absl::StrAppend(&data_, rest, "\n");
  has_data_ = true;
  return absl::OkStatus();
}

}  // namespace runahead
