// Texts of a line that come from users and headers: what is understood is written as it is read.
#include "server/base/address.h"
#include "server/base/config.h"
#include "server/base/printable.h"
#include "server/base/trace_context.h"
#include "tests/fuzz/fuzz.h"

void runahead::Fuzz(std::string_view input) {
  const absl::string_view text(input.data(), input.size());
  if (const auto address = ParseHostPort(text); !address.ok()) {
    fuzz::CheckRefusal(address.status(), "");
  } else {
    const auto again = ParseHostPort(FormatHostPort(*address));
    RUNAHEAD_CHECK(again.ok() && again->host == address->host && again->port == address->port);
    (void)IsLoopback(address->host);
  }
  if (const auto context = ParseTraceparent(text)) {
    const auto again = ParseTraceparent(Traceparent(*context));
    RUNAHEAD_CHECK(again && again->trace_id == context->trace_id && again->span_id == context->span_id);
    RUNAHEAD_CHECK(NewSpan(*context, true).trace_id == context->trace_id);
  }
  if (const auto value = ParseConfigText(std::string(input), "c.yaml"); !value.ok()) {
    fuzz::CheckRefusal(value.status(), "c.yaml");
  }
  fuzz::CheckRefusal(absl::UnknownError("." + Printable(text)), "");
  fuzz::CheckRefusal(OneLine(absl::UnknownError("." + std::string(input))), "");
}
