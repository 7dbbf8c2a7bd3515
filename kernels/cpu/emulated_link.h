// A link between the CPU device's memory and the host's that is not there: what makes a CPU stand for a GPU.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/cpu/pacer.h"

namespace runahead {

// Full duplex: each direction has the whole rate. The device and who made it share it. Thread-safe.
class EmulatedLink {
 public:
  struct Options {
    double gbps = 0;  // gigabits per second in each direction, above 0
    // Of each copy, before its first byte: about what a copy of a few bytes to a GPU takes, launch and event included.
    absl::Duration latency = absl::Microseconds(10);
    Pacer::Clock clock = Pacer::SystemClock();
  };
  // INVALID_ARGUMENT for a rate or a latency that no link has.
  static absl::StatusOr<std::shared_ptr<EmulatedLink>> Create(const Options& options);

  // While copies run, too: those that have begun may finish at the rate before. INVALID_ARGUMENT as above.
  absl::Status SetRate(double gbps);

  // Copy `size` bytes and return when the link would have carried them, behind others of the same direction.
  void CopyToDevice(const std::byte* from, std::byte* to, size_t size) { to_device_.Copy(from, to, size); }
  void CopyToHost(const std::byte* from, std::byte* to, size_t size) { to_host_.Copy(from, to, size); }
  // Returns when `size` bytes would be over, moved in between the pieces of the copies that are under way.
  void Interleave(bool to_device, size_t size) { (to_device ? to_device_ : to_host_).Interleave(size); }

 private:
  explicit EmulatedLink(const Options& options);

  Pacer to_device_, to_host_;
};

}  // namespace runahead
