#include "tests/testing/refused_threads.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace {

std::atomic<char> of_test = 'n';
std::atomic<int> refusals = 0;

// 'n': nobody is refused, 'a': all are, 'w': workers are.
const std::atomic<char>& Refused() {
  static const std::atomic<char>* const refused = []() -> const std::atomic<char>* {
    const char* const path = std::getenv("RUNAHEAD_REFUSED_THREADS");
    const int fd = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return &of_test;
    void* const page = mmap(nullptr, sizeof(std::atomic<char>), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    return page == MAP_FAILED ? &of_test : static_cast<const std::atomic<char>*>(page);
  }();
  return *refused;
}

bool IsRefused() {
  const char refused = Refused().load();
  return refused == 'a' || (refused == 'w' && std::strcmp(program_invocation_short_name, "runahead-worker") == 0);
}

}  // namespace

// A sanitizer's, which has to know of each thread; null where there is none.
extern "C" [[gnu::weak]] int __interceptor_pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                                                          void* (*run)(void*), void* with);

// In place of libc's, for libraries as well.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* with) {
  static const auto next = __interceptor_pthread_create != nullptr
                               ? &__interceptor_pthread_create
                               : reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  if (!IsRefused()) return next(thread, attributes, run, with);
  ++refusals;
  return EAGAIN;
}

namespace runahead::testing {

RefusedThreads::RefusedThreads() {
  refusals = 0;
  of_test = 'a';
}

RefusedThreads::~RefusedThreads() {
  of_test = 'n';
}

int RefusedThreads::refused() const {
  return refusals;
}

}  // namespace runahead::testing
