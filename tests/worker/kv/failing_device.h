// A device whose memory the host cannot touch, and whose copies can be made to fail.
#pragma once

#include <atomic>

#include "absl/status/status.h"
#include "tests/testing/remote_device.h"

namespace runahead::testing {

// Thread-safe.
class FailingDevice final : public RemoteDevice {
 public:
  // The next `count` copies are refused with INTERNAL, or those that come behind `taken` others.
  void RefuseCopies(int count, int taken = 0) {
    refuse_ = count;
    take_ = taken;
  }
  // The next `count` events of a stream fire with DATA_LOSS.
  void FailEvents(int count) { fail_ = count; }

  absl::Status Copy(Stream& stream, const ConstBufferRef& from, const BufferRef& to) override {
    if (!TakeOne(take_) && TakeOne(refuse_)) return absl::InternalError("the copy was refused");
    return RemoteDevice::Copy(stream, from, to);
  }
  Event Record(Stream& stream) override {
    const absl::Status status = TakeOne(fail_) ? absl::DataLossError("the copy failed") : absl::OkStatus();
    EventSource source;
    Call(stream, [source, status] { source.Fire(status); });
    return source.event();
  }

 private:
  static bool TakeOne(std::atomic<int>& left) {
    int before = left;
    while (before > 0 && !left.compare_exchange_weak(before, before - 1)) {
    }
    return before > 0;
  }
  std::atomic<int> take_{0}, refuse_{0}, fail_{0};
};

}  // namespace runahead::testing
