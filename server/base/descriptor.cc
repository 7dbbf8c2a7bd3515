#include "server/base/descriptor.h"

#include <unistd.h>

namespace runahead {

void Descriptor::Close() {
  if (valid()) close(Release());
}

}  // namespace runahead
