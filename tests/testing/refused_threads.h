// The system gives a process no more threads, whoever asks: gRPC neither. To link, or to preload (LD_PRELOAD): then the
// file that RUNAHEAD_REFUSED_THREADS names says who is refused: 'n' for nobody, 'a' for all that have it preloaded, 'w'
// for workers.
#pragma once

namespace runahead::testing {

// Of the process that links it: from when it is made until it is destroyed, one at a time.
class RefusedThreads {
 public:
  RefusedThreads();
  ~RefusedThreads();
  RefusedThreads(const RefusedThreads&) = delete;
  RefusedThreads& operator=(const RefusedThreads&) = delete;

  int refused() const;  // so far
};

}  // namespace runahead::testing
