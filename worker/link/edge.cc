#include "worker/link/edge.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace runahead {

std::string Describe(const PeerKey& key) {
  std::string name = absl::StrFormat("%016x/%d", key.incarnation, key.epoch);
  if (key.generation > 0) absl::StrAppend(&name, "#", key.generation);
  return name;
}

}  // namespace runahead
