#include "server/rpc/tls_words.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

std::string WhatToDo(absl::string_view message, bool speaks_tls, const TlsWords& words) {
  const auto says = [message](absl::string_view text) { return absl::StrContains(message, text); };
  const bool hung_up = says("Socket closed") || says("Connection reset") || says("Broken pipe");
  // So gRPC names what it met before a connection was ready. One that was ready speaks as this end does.
  const bool never_ready = says("last error: ");
  if (!speaks_tls) return hung_up && never_ready ? absl::StrCat("it may speak TLS only: give ", words.on) : "";
  if (says("certificate verify failed")) {
    return absl::StrCat("its certificate has run out, or is not of an authority that is trusted here (", words.ca, ")");
  }
  if (says("Hostname Verification") || says("not in peer certificate") || says("is not for ")) {
    return absl::StrCat("its certificate is for another name (", words.name, ")");
  }
  if (says("wrong version number"))
    return absl::StrCat("it does not speak TLS: have it do so, or leave ", words.on, " out here");
  if (hung_up || says("andshake failed") || says("alert")) {
    return absl::StrCat("it may not speak TLS, or want a certificate of its own authority of this end (", words.cert,
                        ")");
  }
  return "";
}

}  // namespace

absl::Status WithTlsWords(const absl::Status& status, bool speaks_tls, const TlsWords& words) {
  if (!absl::IsUnavailable(status)) return status;
  const std::string what = WhatToDo(status.message(), speaks_tls, words);
  if (what.empty()) return status;
  return absl::UnavailableError(absl::StrCat(status.message(), ": ", what));
}

}  // namespace runahead
