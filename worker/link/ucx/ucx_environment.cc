#include "worker/link/ucx/ucx_environment.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace runahead {
namespace {

#if defined(__SANITIZE_THREAD__)
#define RUNAHEAD_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RUNAHEAD_TSAN 1
#endif
#endif

struct Setting {
  const char* name;
  const char* value;
};

constexpr Setting kSettings[] = {
    {"UCX_ERROR_SIGNALS", ""},
    {"UCX_LOG_FILE", "stderr"},
    {"UCX_WARN_UNUSED_ENV_VARS", "n"},
    // A given port can be had again at once, while the system still keeps connections of the listener before. 1.13
    // reads this here only.
    {"UCX_TCP_CM_REUSEADDR", "y"},
    {"OMP_WAIT_POLICY", "passive"},
    // A GPU's streams that wait for the host must not share a hardware queue with those that bring what it waits for:
    // as many queues as there can be.
    {"CUDA_DEVICE_MAX_CONNECTIONS", "32"},
#if defined(RUNAHEAD_TSAN)
    {"UCX_MEM_EVENTS", "n"},
#endif
};

}  // namespace

void EnsureUcxEnvironment(char** argv) {
  bool changed = false;
  for (const Setting& setting : kSettings) {
    if (std::getenv(setting.name) != nullptr) continue;
    if (setenv(setting.name, setting.value, /*overwrite=*/0) != 0) {
      std::fprintf(stderr, "cannot set %s (%s); going on without it\n", setting.name, std::strerror(errno));
      return;  // else the next start would try again, for ever
    }
    changed = true;
  }
  if (!changed) return;
  std::fflush(nullptr);
  // By its own path, for ps and top name a process after what was executed.
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length > 0) {
    path[length] = '\0';
    execv(path, argv);
  }
  std::fprintf(stderr, "cannot restart with UCX's environment (%s); going on without it\n", std::strerror(errno));
}

}  // namespace runahead
