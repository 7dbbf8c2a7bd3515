#include "server/base/process_collector.h"

#include <dirent.h>
#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "server/base/logging.h"

namespace runahead {
namespace {

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

double ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total_pages = 0, resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return static_cast<double>(resident_pages) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

double OpenFiles() {
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  int entries = 0;
  while (readdir(folder) != nullptr) ++entries;
  closedir(folder);
  return entries - 3;  // ".", ".." and the folder itself
}

// Seconds since 1970. /proc has it in clock ticks since the machine's start.
double StartTime() {
  std::ifstream stat("/proc/self/stat");
  stat.ignore(std::numeric_limits<std::streamsize>::max(), ')');  // the name may hold blanks
  std::string field;
  for (int i = 3; i <= 21; ++i) stat >> field;  // the fields before starttime, which is the 22nd
  double ticks = 0;
  stat >> ticks;
  timespec boot{}, now{};
  clock_gettime(CLOCK_BOOTTIME, &boot);
  clock_gettime(CLOCK_REALTIME, &now);
  const double booted =
      static_cast<double>(now.tv_sec - boot.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec - boot.tv_nsec);
  return booted + ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

prometheus::MetricFamily Family(const char* name, const char* help, prometheus::MetricType type, double value) {
  prometheus::MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = type;
  prometheus::ClientMetric metric;
  (type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  family.metric.push_back(metric);
  return family;
}

class ProcessCollector final : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override {
    using prometheus::MetricType;
    return {
        Family("process_cpu_seconds_total", "User and system CPU seconds used", MetricType::Counter, CpuSeconds()),
        Family("process_resident_memory_bytes", "Resident memory", MetricType::Gauge, ResidentBytes()),
        Family("process_open_fds", "Open file descriptors", MetricType::Gauge, OpenFiles()),
        Family("runahead_log_lines_dropped_total", "Lines of the log that were dropped because it was not read in time",
               MetricType::Counter, static_cast<double>(DroppedLogLines())),
        Family("process_start_time_seconds", "Start of the process, seconds since 1970", MetricType::Gauge, start_),
    };
  }

 private:
  const double start_ = StartTime();  // read once: it must not wander with the clock
};

}  // namespace

std::unique_ptr<prometheus::Collectable> MakeProcessCollector() {
  return std::make_unique<ProcessCollector>();
}

}  // namespace runahead
