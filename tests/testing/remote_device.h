// A fake device whose memory the host cannot touch, as a GPU's: who tries crashes. Only Copy moves bytes.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/mutex.h"
#include "tests/testing/await_change.h"
#include "tests/testing/fake_device.h"

namespace runahead::testing {

// Thread-safe. Buffers must not outlive it.
class RemoteDevice : public FakeDevice {
 public:
  std::string_view name() const override { return "remote"; }
  bool host_reads_device_memory() const override { return false; }
  bool has_host_link() const override { return true; }

  absl::StatusOr<std::shared_ptr<Buffer>> Allocate(size_t bytes, MemoryKind kind) override {
    if (kind == MemoryKind::kDevice) return std::shared_ptr<Buffer>(std::make_shared<RemoteBuffer>(*this, bytes));
    if (refuse_host_) return absl::ResourceExhaustedError("no host memory is left to pin");
    host_bytes_ += bytes;
    return FakeDevice::Allocate(bytes, kind);
  }
  absl::Status Copy(Stream& stream, const ConstBufferRef& from, const BufferRef& to) override {
    if (from.size != to.size) return absl::InvalidArgumentError("Copy: the sizes differ");
    Event gate;
    {
      MutexLock lock(mu_);
      gate = gate_;
      any_enqueued_ = true;
      changed_.NotifyAll();
    }
    Call(stream, [this, from, to, gate] {
      gate.Wait().IgnoreError();
      std::memmove(Memory(to), Memory(from), to.size);
      ++copies_;
      MutexLock lock(mu_);
      directions_ += memory_.contains(to.buffer->data()) ? 'i' : 'o';
    });
    return absl::OkStatus();
  }

  BufferRef Room(size_t bytes) { return BufferRef::Whole(*Allocate(bytes, MemoryKind::kDevice)); }
  // Device memory with the bytes of `host`.
  BufferRef Holding(const ConstBufferRef& host) {
    BufferRef ref = Room(host.size);
    std::memcpy(Memory(ref), host.data(), host.size);
    return ref;
  }
  std::string Peek(const BufferRef& ref) { return std::string(reinterpret_cast<const char*>(Memory(ref)), ref.size); }

  // Copies that are enqueued from now on wait for `gate`.
  void HoldCopies(const Event& gate) {
    MutexLock lock(mu_);
    gate_ = gate;
  }
  // Blocks until a first copy is enqueued.
  void AwaitCopyEnqueued() {
    MutexLock lock(mu_);
    ChangeWait wait("a first copy is enqueued");
    while (!any_enqueued_) {
      if (!wait.Next(mu_, changed_)) return;
    }
  }
  void RefuseHostMemory(bool refuse) { refuse_host_ = refuse; }
  size_t host_bytes() const { return host_bytes_; }  // ever allocated
  int copies() const { return copies_; }             // that have run
  // Of each of these, in order: into the device, or out of it.
  std::string directions() {
    MutexLock lock(mu_);
    return directions_;
  }
  // Flips a bit of the byte at `at`.
  void Flip(const BufferRef& ref, size_t at, int bit) { Memory(ref)[at] ^= static_cast<std::byte>(1u << bit); }

 private:
  class RemoteBuffer final : public Buffer {
   public:
    RemoteBuffer(RemoteDevice& device, size_t bytes)
        : Buffer(static_cast<std::byte*>(
                     mmap(nullptr, bytes + 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)),
                 bytes),
          device_(device) {
      MutexLock lock(device_.mu_);
      device_.memory_[data_].resize(bytes + 1);
    }
    ~RemoteBuffer() override {
      {
        MutexLock lock(device_.mu_);
        device_.memory_.erase(data_);
      }
      munmap(data_, size_ + 1);
    }

   private:
    RemoteDevice& device_;
  };

  // Where the bytes really are.
  std::byte* Memory(const BufferRef& ref) {
    MutexLock lock(mu_);
    const auto found = memory_.find(ref.buffer->data());
    return found == memory_.end() ? ref.data() : found->second.data() + ref.offset;
  }

  Mutex mu_;
  CondVar changed_;
  bool any_enqueued_ RUNAHEAD_GUARDED_BY(mu_) = false;
  Event gate_ RUNAHEAD_GUARDED_BY(mu_);
  std::string directions_ RUNAHEAD_GUARDED_BY(mu_);
  std::map<std::byte*, std::vector<std::byte>> memory_ RUNAHEAD_GUARDED_BY(mu_);
  std::atomic<bool> refuse_host_{false};
  std::atomic<size_t> host_bytes_{0};
  std::atomic<int> copies_{0};
};

}  // namespace runahead::testing
