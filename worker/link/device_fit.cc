#include "worker/link/device_fit.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace runahead {
namespace {

struct DeviceIdentity {
  std::string library, version, gpu, host;
};

std::optional<DeviceIdentity> Parse(std::string_view identity) {
  const std::vector<std::string> words = absl::StrSplit(absl::string_view(identity.data(), identity.size()), ' ');
  if (words.size() != 5 || words[3] != "host") return std::nullopt;
  for (const std::string& word : words) {
    if (word.empty()) return std::nullopt;
  }
  return DeviceIdentity{words[0], words[1], words[2], words[4]};
}

absl::Status No(const std::string& why) {
  return absl::FailedPreconditionError(why);
}

}  // namespace

absl::Status DeviceLinkFits(std::string_view own, std::string_view peer) {
  if (own.empty()) return No("this worker has no link between GPUs");
  if (peer.empty()) return No("the peer has no link between GPUs");
  const std::optional<DeviceIdentity> a = Parse(own), b = Parse(peer);
  if (!a.has_value() || !b.has_value()) {
    const std::string_view odd = a.has_value() ? peer : own;
    return No(absl::StrCat("\"", absl::CHexEscape(std::string(odd.substr(0, 200))), "\" names no GPU and library"));
  }
  if (a->library != b->library || a->version != b->version) {
    return No(absl::StrCat("this worker has ", a->library, " ", a->version, ", the peer ", absl::CHexEscape(b->library),
                           " ", absl::CHexEscape(b->version)));
  }
  if (a->gpu == b->gpu && a->host == b->host) {
    return No("both workers are on one GPU (a distinct NCCL_HOSTID for each would allow it, to try things out)");
  }
  return absl::OkStatus();
}

}  // namespace runahead
