#include "server/base/srv_lookup.h"

#include <arpa/nameser.h>
#include <netdb.h>
#include <netinet/in.h>
#include <resolv.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "server/base/address.h"
#include "server/base/socket_address.h"

namespace runahead {
namespace {

// As much as an answer over TCP can have.
constexpr size_t kLongestAnswer = 65535;

absl::Status AskAt(const std::string& server, struct __res_state& state) {
  RUNAHEAD_ASSIGN_OR_RETURN(const HostPort parsed, ParseHostPort(server));
  const absl::StatusOr<SocketAddress> address = NumericSocketAddress(parsed);
  if (!address.ok() || address->storage.ss_family != AF_INET) {
    return absl::InvalidArgumentError(absl::StrCat(server, " is not an IPv4 address with a port"));
  }
  state.nscount = 1;
  state.nsaddr_list[0] = reinterpret_cast<const sockaddr_in&>(address->storage);
  return absl::OkStatus();
}

absl::Status WhyNot(const std::string& service, int h_error) {
  switch (h_error) {
    case HOST_NOT_FOUND:
      return absl::NotFoundError(absl::StrCat(service, ": the name service knows no such name"));
    case NO_DATA:
      return absl::NotFoundError(absl::StrCat(service, ": the name has no SRV records"));
    default:
      return absl::UnavailableError(absl::StrCat(service, ": the name service does not answer, or fails"));
  }
}

absl::StatusOr<std::set<std::string>> TargetsOf(const std::string& service, const std::vector<unsigned char>& answer) {
  const auto garbled = [&] { return absl::UnavailableError(absl::StrCat(service, ": the answer is garbled")); };
  ns_msg message;
  if (ns_initparse(answer.data(), static_cast<int>(answer.size()), &message) != 0) return garbled();
  std::set<std::string> targets;
  for (int i = 0; i < ns_msg_count(message, ns_s_an); ++i) {
    ns_rr record;
    if (ns_parserr(&message, ns_s_an, i, &record) != 0) return garbled();
    if (ns_rr_type(record) != ns_t_srv) continue;
    // Priority, weight and port, two bytes each, then the target.
    constexpr int kPortAt = 4, kTargetAt = 6;
    char target[NS_MAXDNAME];
    if (ns_rr_rdlen(record) <= kTargetAt || dn_expand(ns_msg_base(message), ns_msg_end(message),
                                                      ns_rr_rdata(record) + kTargetAt, target, sizeof target) < 0) {
      return garbled();
    }
    const absl::string_view host = absl::StripSuffix(target, ".");
    if (host.empty()) continue;  // "." says that there is no such service
    targets.insert(absl::StrCat(host, ":", ns_get16(ns_rr_rdata(record) + kPortAt)));
  }
  return targets;
}

}  // namespace

absl::StatusOr<std::set<std::string>> LookUpSrv(const std::string& service, const std::string& server) {
  struct __res_state state;
  std::memset(&state, 0, sizeof state);
  if (res_ninit(&state) != 0) return absl::UnavailableError("/etc/resolv.conf cannot be read");
  const absl::Cleanup close = [&state] { res_nclose(&state); };
  state.retrans = 1;  // seconds
  state.retry = 2;
  if (!server.empty()) RUNAHEAD_RETURN_IF_ERROR(AskAt(server, state));
  std::vector<unsigned char> answer(kLongestAnswer);
  const int length =
      res_nsearch(&state, service.c_str(), ns_c_in, ns_t_srv, answer.data(), static_cast<int>(answer.size()));
  if (length < 0) return WhyNot(service, state.res_h_errno);
  answer.resize(std::min(answer.size(), static_cast<size_t>(length)));
  return TargetsOf(service, answer);
}

}  // namespace runahead
