// A library to preload (LD_PRELOAD): the time of day is as many seconds off as the file named by RUNAHEAD_STEPPED_CLOCK
// says, and follows it when it changes, as when somebody sets the clock. The monotonic clock is left alone. Waits until
// a time of day are shifted back, for the kernel knows nothing of this.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>

namespace {

// Seconds; 0 where there is no file.
int64_t Offset() {
  static const std::atomic<int64_t>* const offset = []() -> const std::atomic<int64_t>* {
    const char* const path = std::getenv("RUNAHEAD_STEPPED_CLOCK");
    const int fd = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return nullptr;
    void* const page = mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    return page == MAP_FAILED ? nullptr : static_cast<const std::atomic<int64_t>*>(page);
  }();
  return offset == nullptr ? 0 : offset->load(std::memory_order_relaxed);
}

template <typename Function>
Function* Next(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

bool IsTimeOfDay(clockid_t clock) {
  return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
}

timespec ShiftedBack(const timespec& time) {
  return {time.tv_sec - static_cast<time_t>(Offset()), time.tv_nsec};
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  static const auto next = Next(&clock_gettime, "clock_gettime");
  const int result = next(clock, time);
  if (result == 0 && IsTimeOfDay(clock)) time->tv_sec += static_cast<time_t>(Offset());
  return result;
}

int gettimeofday(timeval* time, void* zone) noexcept {
  static const auto next = Next(&gettimeofday, "gettimeofday");
  const int result = next(time, zone);
  if (result == 0) time->tv_sec += static_cast<time_t>(Offset());
  return result;
}

time_t time(time_t* into) noexcept {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  if (into != nullptr) *into = now.tv_sec;
  return now.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* until) {
  static const auto next = Next(&pthread_cond_timedwait, "pthread_cond_timedwait");
  const timespec shifted = ShiftedBack(*until);
  return next(condition, mutex, &shifted);
}

int pthread_mutex_timedlock(pthread_mutex_t* mutex, const timespec* until) noexcept {
  static const auto next = Next(&pthread_mutex_timedlock, "pthread_mutex_timedlock");
  const timespec shifted = ShiftedBack(*until);
  return next(mutex, &shifted);
}

int sem_timedwait(sem_t* semaphore, const timespec* until) {
  static const auto next = Next(&sem_timedwait, "sem_timedwait");
  const timespec shifted = ShiftedBack(*until);
  return next(semaphore, &shifted);
}

// Abseil waits by futex.
long syscall(long number, ...) noexcept {
  static const auto next = Next(&syscall, "syscall");
  long argument[6];
  va_list rest;
  va_start(rest, number);
  for (long& one : argument) one = va_arg(rest, long);
  va_end(rest);
  timespec shifted;
  if (number == SYS_futex && (argument[1] & FUTEX_CLOCK_REALTIME) != 0 && argument[3] != 0) {
    shifted = ShiftedBack(*reinterpret_cast<const timespec*>(argument[3]));
    argument[3] = reinterpret_cast<long>(&shifted);
  }
  return next(number, argument[0], argument[1], argument[2], argument[3], argument[4], argument[5]);
}

}  // extern "C"
