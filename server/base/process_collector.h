// Prometheus' usual process metrics, read from /proc when somebody asks.
#pragma once

#include <memory>

namespace prometheus {
class Collectable;
}

namespace runahead {

// process_cpu_seconds_total, process_resident_memory_bytes, process_open_fds, process_start_time_seconds, and
// runahead_log_lines_dropped_total. Thread-safe.
std::unique_ptr<prometheus::Collectable> MakeProcessCollector();

}  // namespace runahead
