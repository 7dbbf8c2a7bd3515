// More threads that want a core than there are, for tests of what waits for one.
#pragma once

#include <cstdint>
#include <fstream>
#include <thread>
#include <vector>

namespace runahead::testing {

// Whether the kernel tells how long threads waited for cores.
inline bool TellsWaits() {
  int64_t on_core_ns = 0;
  return (std::ifstream("/proc/self/schedstat") >> on_core_ns) && on_core_ns != 0;
}

// Two threads a core, which compute while it lives.
class BusyCores {
 public:
  BusyCores() : threads_(2 * std::thread::hardware_concurrency()) {
    for (std::jthread& thread : threads_) {
      thread = std::jthread([](const std::stop_token& stop) {
        while (!stop.stop_requested()) {
        }
      });
    }
  }

 private:
  std::vector<std::jthread> threads_;
};

}  // namespace runahead::testing
