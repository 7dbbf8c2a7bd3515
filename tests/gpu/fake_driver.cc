// A driver with one GPU on which nothing runs, for tests of what asks a driver: the main of GPU tests,
// tests/gpu/run.sh. Contexts are lost as on a GPU: to the process that calls fake_cuda_lose; to all where
// RUNAHEAD_FAKE_GPU_LOST names a file that exists.
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr int kIllegalAddress = 700;
constexpr int kNotInitialised = 3;
constexpr int kUnknown = 999;
int begun = 0, used = 0, lost = 0;

int Code() {
  const char* const file = std::getenv("RUNAHEAD_FAKE_GPU_LOST");
  if (file != nullptr && access(file, F_OK) == 0) return kUnknown;
  return lost != 0 ? kIllegalAddress : 0;
}

}  // namespace

extern "C" {

void fake_cuda_use() {
  begun = used = 1;
}
void fake_cuda_lose() {
  fake_cuda_use();
  lost = 1;
}

int cuInit(unsigned) {
  begun = 1;
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = 1;
  return begun != 0 ? 0 : kNotInitialised;
}
int cuDeviceGetName(char* name, int size, int) {
  std::snprintf(name, static_cast<size_t>(size), "a fake GPU");
  return 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = size_t{1} << 30;
  return 0;
}
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int cuDeviceGetAttribute(int* value, int, int) {
  *value = 9;
  return 0;
}
int cuDevicePrimaryCtxGetState(int, unsigned*, int* active) {
  *active = used;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  *context = &used;
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int) {
  return 0;
}
int cuCtxPushCurrent_v2(void*) {
  return Code();
}
int cuCtxPopCurrent_v2(void**) {
  return 0;
}
int cuCtxSynchronize() {
  return Code();
}

}  // extern "C"
