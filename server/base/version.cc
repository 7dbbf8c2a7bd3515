#include "server/base/version.h"

namespace runahead {

absl::string_view Version() {
  return RUNAHEAD_VERSION;
}

}  // namespace runahead
