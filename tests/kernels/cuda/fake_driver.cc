// A driver as a machine may have it: cuInit fails, or there are no GPUs, or one.
extern "C" int cuInit(unsigned) {
  return DRIVER_INIT;
}
extern "C" int cuDeviceGetCount(int* count) {
  if (DRIVER_COUNT < 0) return 3;
  *count = DRIVER_COUNT;
  return 0;
}
