// Streams of servers that are not ours, as `runahead bench` hears them: whole, and in pieces of 1 and of 7 bytes.
#include "client/bench/openai_stream.h"

#include <string>
#include <vector>

#include "client/bench/sse_reader.h"
#include "tests/fuzz/fuzz.h"

namespace runahead {
namespace {

struct Heard {
  std::vector<std::string> events;
  int arrivals = 0;
  absl::Status status;
  bool operator==(const Heard&) const = default;
};

Heard Hear(absl::string_view bytes, size_t size) {
  Heard heard;
  SseReader reader;
  OpenAiStream stream;
  const auto on_data = [&](absl::string_view data) {
    heard.events.emplace_back(data);
    const auto came = stream.Add(data);
    if (came.ok() && *came) ++heard.arrivals;
    return came.status();
  };
  for (size_t at = 0; at < bytes.size() && heard.status.ok(); at += size) {
    heard.status = reader.Feed(bytes.substr(at, size), on_data);
  }
  if (!heard.status.ok()) {
    fuzz::CheckRefusal(heard.status, "");
  } else {
    heard.status = stream.End();
  }
  return heard;
}

}  // namespace

void Fuzz(std::string_view input) {
  const absl::string_view bytes(input.data(), input.size());
  const Heard whole = Hear(bytes, bytes.size() + 1);
  RUNAHEAD_CHECK(Hear(bytes, 1) == whole);
  RUNAHEAD_CHECK(Hear(bytes, 7) == whole);
  fuzz::CheckRefusal(HttpFailure(500, bytes), "HTTP ");
}

}  // namespace runahead
