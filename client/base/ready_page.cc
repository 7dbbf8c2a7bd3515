#include "client/base/ready_page.h"

#include <httplib.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace runahead {

absl::Status AskReady(const std::string& address, const char* path, absl::Duration timeout) {
  httplib::Client client(absl::StrCat("http://", address));
  client.set_connection_timeout(absl::ToChronoMilliseconds(timeout));
  client.set_read_timeout(absl::ToChronoMilliseconds(timeout));
  const httplib::Result answer = client.Get(path);
  if (!answer) return absl::UnavailableError(absl::StrCat("no answer at ", address));
  if (answer->status == 200) return absl::OkStatus();
  return absl::UnavailableError(absl::StripAsciiWhitespace(answer->body));
}

}  // namespace runahead
