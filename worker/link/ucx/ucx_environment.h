// UCX, OpenMP and CUDA read part of their settings when their libraries are loaded, before main.
#pragma once

namespace runahead {

// To be called first in main. Sets what they read at load time and the user has not set, and starts the
// process again in place, once, so that it counts. Returns when everything is set; when the restart fails it says so on
// stderr and goes on. Single-threaded.
//   UCX_ERROR_SIGNALS (empty)       crashes are ours to report
//   UCX_LOG_FILE (stderr)           stdout is for what a program says to its parent
//   UCX_WARN_UNUSED_ENV_VARS (n)    UCX would warn of variables of ours
//   UCX_MEM_EVENTS (n, tsan only)   its hooks on malloc do not go with the sanitizer's
//   OMP_WAIT_POLICY (passive)       waiting threads do not eat the cores
//   CUDA_DEVICE_MAX_CONNECTIONS (32)  a GPU's most: streams that share a hardware queue hold each other up
void EnsureUcxEnvironment(char** argv);

}  // namespace runahead
