#include "client/base/wait_status.h"

#include <string.h>
#include <sys/wait.h>

#include "absl/strings/str_cat.h"

namespace runahead {

std::string DescribeEnd(int wait_status) {
  if (WIFEXITED(wait_status)) return absl::StrCat("ended with exit code ", WEXITSTATUS(wait_status));
  const int signal = WTERMSIG(wait_status);
  return absl::StrCat("was ended by signal ", signal, " (", strsignal(signal), ")");
}

}  // namespace runahead
