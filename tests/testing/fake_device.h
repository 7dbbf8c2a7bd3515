// A device without arithmetic: real memory, real asynchronous streams (a thread each), no ops. For tests of what
// moves bytes and waits for events.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/device.h"
#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"

namespace runahead::testing {

// Thread-safe, as the contract of Device asks. Buffers start filled with 0xA5.
class FakeDevice : public Device {
 public:
  std::string_view name() const override { return "fake"; }
  bool host_reads_device_memory() const override { return true; }
  bool has_host_link() const override { return false; }
  DType compute_dtype() const override { return DType::kF32; }
  DType invariant_dtype() const override { return DType::kF32; }
  int64_t gemm_rows() const override { return 512; }
  absl::Status CheckHeadDim(int64_t) const override { return absl::OkStatus(); }

  absl::StatusOr<std::shared_ptr<Buffer>> Allocate(size_t bytes, MemoryKind) override {
    return std::shared_ptr<Buffer>(std::make_shared<HostBuffer>(bytes));
  }
  size_t memory_left() const override { return std::numeric_limits<size_t>::max(); }
  std::unique_ptr<Stream> NewStream(std::string_view) override { return std::make_unique<ThreadStream>(); }
  absl::StatusOr<std::shared_ptr<const Weights>> LoadWeights(const WeightSource&, unsigned) override {
    return Missing("LoadWeights");
  }
  absl::StatusOr<std::shared_ptr<const Weights>> WeightsAt(const Weights&, const BufferRef&) override {
    return Missing("WeightsAt");
  }

  // The next event of a stream fires with DATA_LOSS.
  void FailNextEvent() { fail_next_event_ = true; }
  Event Record(Stream& stream) override {
    const absl::Status status =
        fail_next_event_.exchange(false) ? absl::DataLossError("a kernel failed") : absl::OkStatus();
    EventSource source;
    static_cast<ThreadStream&>(stream).Enqueue([source, status] { source.Fire(status); });
    return source.event();
  }
  std::shared_ptr<const TimeMark> MarkTime(Stream& stream) override {
    auto mark = std::make_shared<FakeMark>();
    static_cast<ThreadStream&>(stream).Enqueue([mark] { mark->passed_ns = absl::GetCurrentTimeNanos(); });
    return mark;
  }
  void WaitFor(Stream& stream, const Event& event) override {
    static_cast<ThreadStream&>(stream).Enqueue([event] { event.Wait().IgnoreError(); });
  }
  void Call(Stream& stream, std::function<void()> function) override {
    static_cast<ThreadStream&>(stream).Enqueue(std::move(function));
  }
  void BeginStep(Stream&) override { RUNAHEAD_CHECK(!in_step_.exchange(true)); }
  void EndStep(Stream&) override {
    RUNAHEAD_CHECK(in_step_.exchange(false));
    ++steps_;
  }
  int steps() const { return steps_; }  // ended
  int64_t copied_bytes() const { return copied_bytes_; }
  absl::Status Copy(Stream& stream, const ConstBufferRef& from, const BufferRef& to) override {
    if (from.size != to.size) return absl::InvalidArgumentError("Copy: the sizes differ");
    copied_bytes_ += static_cast<int64_t>(from.size);
    Call(stream, [from, to] { std::memmove(to.data(), from.data(), to.size); });
    return absl::OkStatus();
  }
  absl::Status CopyAll(Stream& stream, std::vector<CopyPart> parts) override {
    for (const CopyPart& part : parts) RUNAHEAD_RETURN_IF_ERROR(Copy(stream, part.from, part.to));
    return absl::OkStatus();
  }

  absl::Status Embed(Stream&, const Weights&, std::vector<int32_t>, bool, const MutTensor&) override {
    return Missing("Embed");
  }
  absl::Status RmsNorm(Stream&, const ConstTensor&, const ConstTensor&, float, const MutTensor&) override {
    return Missing("RmsNorm");
  }
  absl::Status LayerNorm(Stream&, const ConstTensor&, const ConstTensor&, const ConstTensor&, float,
                         const MutTensor&) override {
    return Missing("LayerNorm");
  }
  absl::Status Linear(Stream&, const ConstTensor&, std::shared_ptr<const Weights>, const LinearOptions&,
                      const MutTensor&) override {
    return Missing("Linear");
  }
  absl::Status HeadNorm(Stream&, const MutTensor&, int64_t, const ConstTensor&, float) override {
    return Missing("HeadNorm");
  }
  // A piece for each sequence.
  absl::StatusOr<std::shared_ptr<const KvTable>> MakeKvTable(Stream&, KvLayout layout) override {
    return std::make_shared<FakeKvTable>(std::move(layout));
  }
  absl::Status Rope(Stream&, const MutTensor&, int64_t, const Rotation&, const KvTable&, int64_t) override {
    return Missing("Rope");
  }
  absl::Status StoreQkv(Stream&, const ConstTensor&, const AttentionShape&, const MutTensor&, const KvTable&, int64_t,
                        const BufferRef&) override {
    return Missing("StoreQkv");
  }
  absl::Status Attention(Stream&, const ConstTensor&, const AttentionShape&, const KvTable&, const ConstBufferRef&,
                         const MutTensor&) override {
    return Missing("Attention");
  }
  absl::Status AttendPieces(Stream&, const ConstTensor&, const AttentionShape&, const KvTable&, const ConstBufferRef&,
                            const MutTensor&) override {
    return Missing("AttendPieces");
  }
  absl::Status MergePieces(Stream&, const ConstTensor&, const AttentionShape&, const KvTable&,
                           const MutTensor&) override {
    return Missing("MergePieces");
  }
  absl::Status GatedActivate(Stream&, const ConstTensor&, Activation, const MutTensor&) override {
    return Missing("GatedActivate");
  }
  absl::Status Activate(Stream&, const ConstTensor&, Activation, const MutTensor&) override {
    return Missing("Activate");
  }
  absl::Status Scale(Stream&, const ConstTensor&, float, bool, const MutTensor&) override { return Missing("Scale"); }
  absl::Status SoftCap(Stream&, const MutTensor&, float) override { return Missing("SoftCap"); }
  absl::Status GatherRows(Stream&, const ConstTensor&, std::vector<int32_t>, const MutTensor&) override {
    return Missing("GatherRows");
  }
  absl::Status ExchangeRows(Stream&, const ConstTensor&, std::vector<RowMove>, const MutTensor&) override {
    return Missing("ExchangeRows");
  }
  absl::Status QuantizeKv(Stream&, const ConstTensor&, const KvQuant&, const BufferRef&) override {
    return Missing("QuantizeKv");
  }
  absl::Status DequantizeKv(Stream&, const ConstBufferRef&, const KvQuant&, const MutTensor&) override {
    return Missing("DequantizeKv");
  }
  absl::Status TopK(Stream&, const ConstTensor&, int64_t, const MutTensor&, const MutTensor&,
                    const MutTensor&) override {
    return Missing("TopK");
  }
  absl::Status Sample(Stream&, const ConstTensor&, std::vector<SampleParams>, const SampleTables&, const MutTensor&,
                      const MutTensor&) override {
    return Missing("Sample");
  }

 private:
  struct FakeMark final : public TimeMark {
    std::optional<absl::Time> time() const override {
      const int64_t ns = passed_ns;
      return ns < 0 ? std::nullopt : std::optional(absl::FromUnixNanos(ns));
    }
    std::atomic<int64_t> passed_ns{-1};
  };
  class FakeKvTable final : public KvTable {
   public:
    explicit FakeKvTable(KvLayout layout) : FakeKvTable(layout, static_cast<int64_t>(layout.sequences.size())) {}

   private:
    FakeKvTable(const KvLayout& layout, int64_t pieces) : KvTable(layout, pieces) {}
  };
  class HostBuffer final : public Buffer {
   public:
    explicit HostBuffer(size_t bytes)
        : Buffer(static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 127) / 64 * 64)), bytes) {
      std::memset(data_, 0xA5, bytes);
    }
    ~HostBuffer() override { std::free(data_); }
  };

  class ThreadStream final : public Stream {
   public:
    ThreadStream() : thread_([this] { Run(); }) {}
    ~ThreadStream() override {
      Enqueue(nullptr);
      thread_.join();
    }
    void Enqueue(std::function<void()> work) {
      MutexLock lock(mu_);
      work_.push_back(std::move(work));
      changed_.NotifyAll();
    }

   private:
    void Run() {
      while (true) {
        std::function<void()> next;
        {
          MutexLock lock(mu_);
          while (work_.empty()) changed_.Wait(mu_);
          next = std::move(work_.front());
          work_.pop_front();
        }
        if (next == nullptr) return;
        next();
      }
    }

    Mutex mu_;
    CondVar changed_;
    std::deque<std::function<void()>> work_ RUNAHEAD_GUARDED_BY(mu_);
    std::thread thread_;
  };

  static absl::Status Missing(std::string_view op) {
    return absl::UnimplementedError(std::string("the fake device has no ") + std::string(op));
  }

  std::atomic<bool> in_step_{false};
  std::atomic<bool> fail_next_event_{false};
  std::atomic<int> steps_{0};
  std::atomic<int64_t> copied_bytes_{0};
};

}  // namespace runahead::testing
