// A GPU on a clock of its own: it computes nothing and moves nothing, but says how long that would take, from the
// rates it is given, and counts what it is asked. So steps of large models are timed on a machine without a GPU, to the
// same nanosecond each time.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "tests/testing/fake_device.h"

namespace runahead::testing {

struct SimulatedRates {
  double call_s = 0;    // of the thread that calls, for each call that enqueues something
  double launch_s = 0;  // of a stream, before each kernel and each copy
  double sync_s = 0;    // from the end of work until a thread that waits for it goes on
  double link_bytes_per_s = 53e9, memory_bytes_per_s = 3.35e12, flops = 700e12;
};

struct SimulatedCounts {
  int64_t calls = 0;       // that enqueue something, of all kinds
  int64_t host_calls = 0;  // functions of the host that a stream waits for
  int64_t launches = 0;    // kernels and copies
  int64_t copies = 0, products = 0, tables = 0;

  friend SimulatedCounts operator-(const SimulatedCounts& a, const SimulatedCounts& b) {
    return {a.calls - b.calls,   a.host_calls - b.host_calls, a.launches - b.launches,
            a.copies - b.copies, a.products - b.products,     a.tables - b.tables};
  }
};

// Used by one thread, but for what loads weights. Memory is addresses only: what nobody touches takes none.
class SimulatedDevice final : public FakeDevice {
 public:
  explicit SimulatedDevice(SimulatedRates rates) : rates_(rates) {}

  SimulatedCounts counts;
  // Whether the thread waits for each event as it is recorded: then it has fired, and the clock is behind it. Else
  // events fire when this is set again.
  void SetWaited(bool waited) {
    waited_ = waited;
    if (waited) unfired_.clear();
  }
  // The thread's clock, behind all that it waited for.
  absl::Time Now() const { return absl::UnixEpoch() + absl::Seconds(host_s_); }
  // When all that was enqueued on the stream has run.
  absl::Time EndOf(Stream& stream) const { return absl::UnixEpoch() + absl::Seconds(LineOf(stream).end_s); }

  std::string_view name() const override { return "simulated"; }
  bool host_reads_device_memory() const override { return false; }
  bool has_host_link() const override { return true; }
  DType compute_dtype() const override { return DType::kBF16; }
  DType invariant_dtype() const override { return DType::kBF16; }
  int64_t gemm_rows() const override { return 4096; }

  absl::StatusOr<std::shared_ptr<Buffer>> Allocate(size_t bytes, MemoryKind kind) override {
    return std::shared_ptr<Buffer>(std::make_shared<Addresses>(bytes, kind));
  }
  std::unique_ptr<Stream> NewStream(std::string_view) override { return std::make_unique<Line>(); }
  absl::StatusOr<std::shared_ptr<const Weights>> LoadWeights(const WeightSource& source, unsigned) override {
    return std::make_shared<const Shape>(source.rows(), source.cols);
  }

  Event Record(Stream& stream) override {
    MutexLock lock(mu_);
    Call();
    const double at = std::max(host_s_, LineOf(stream).end_s);
    if (waited_) {
      host_s_ = at + rates_.sync_s;
      return Event();
    }
    unfired_.emplace_back(std::make_shared<Mark>(at));
    return unfired_.back().event();
  }
  std::shared_ptr<const TimeMark> MarkTime(Stream& stream) override {
    MutexLock lock(mu_);
    Call();
    return std::make_shared<const Moment>(std::max(host_s_, LineOf(stream).end_s));
  }
  void WaitFor(Stream& stream, const Event& event) override {
    if (event.fired()) return;
    MutexLock lock(mu_);
    Call();
    double& end_s = LineOf(stream).end_s;
    end_s = std::max(end_s, std::static_pointer_cast<Mark>(event.native())->at_s);
  }
  void Call(Stream& stream, std::function<void()> function) override {
    Count(counts.host_calls);
    Run(stream, 0);
    function();
  }
  absl::Status Copy(Stream& stream, const ConstBufferRef& from, const BufferRef& to) override {
    Count(counts.copies);
    CopyBytes(stream, from, to, from.size);
    return absl::OkStatus();
  }
  absl::Status CopyAll(Stream& stream, std::vector<CopyPart> parts) override {
    if (parts.empty()) return absl::OkStatus();
    Count(counts.copies);
    size_t bytes = 0;
    for (const CopyPart& part : parts) bytes += part.from.size;
    CopyBytes(stream, parts.front().from, parts.front().to, bytes);
    return absl::OkStatus();
  }
  absl::StatusOr<std::shared_ptr<const KvTable>> MakeKvTable(Stream& stream, KvLayout layout) override {
    Count(counts.tables);
    if (!fetches_) Run(stream, 0);
    fetches_ = true;
    return std::make_shared<const Table>(std::move(layout));
  }

  absl::Status Embed(Stream& stream, const Weights&, std::vector<int32_t>, bool, const MutTensor& out) override {
    return Pass(stream, {out, out});
  }
  absl::Status RmsNorm(Stream& stream, const ConstTensor& x, const ConstTensor&, float, const MutTensor& out) override {
    return Pass(stream, {x, out});
  }
  absl::Status LayerNorm(Stream& stream, const ConstTensor& x, const ConstTensor&, const ConstTensor&, float,
                         const MutTensor& out) override {
    return Pass(stream, {x, out});
  }
  absl::Status Linear(Stream& stream, const ConstTensor& x, std::shared_ptr<const Weights> w, const LinearOptions&,
                      const MutTensor& out) override {
    Count(counts.products);
    const double weights = static_cast<double>(out.cols * w->cols()) * 2;
    const double memory_s = (weights + BytesOf(x) + BytesOf(out)) / rates_.memory_bytes_per_s;
    const double product_s = 2.0 * static_cast<double>(x.rows) * weights / 2 / rates_.flops;
    Run(stream, std::max(memory_s, product_s));
    return absl::OkStatus();
  }
  absl::Status HeadNorm(Stream& stream, const MutTensor& x, int64_t, const ConstTensor&, float) override {
    return Pass(stream, {x, x});
  }
  absl::Status Rope(Stream& stream, const MutTensor& x, int64_t, const Rotation&, const KvTable&, int64_t) override {
    return Pass(stream, {x, x});
  }
  absl::Status StoreQkv(Stream& stream, const ConstTensor& qkv, const AttentionShape&, const MutTensor&, const KvTable&,
                        int64_t, const BufferRef&) override {
    return Pass(stream, {qkv, qkv});
  }
  absl::Status AttendPieces(Stream& stream, const ConstTensor&, const AttentionShape& shape, const KvTable& table,
                            const ConstBufferRef&, const MutTensor&) override {
    int64_t positions = 0;
    for (const KvSequence& sequence : table.layout().sequences) positions += sequence.end - sequence.begin;
    Run(stream, static_cast<double>(positions * shape.kv_row_bytes()) / rates_.memory_bytes_per_s);
    return absl::OkStatus();
  }
  absl::Status MergePieces(Stream& stream, const ConstTensor& partials, const AttentionShape&, const KvTable&,
                           const MutTensor&) override {
    return Pass(stream, {partials});
  }
  absl::Status GatedActivate(Stream& stream, const ConstTensor& x, Activation, const MutTensor& out) override {
    return Pass(stream, {x, out});
  }
  absl::Status Activate(Stream& stream, const ConstTensor& x, Activation, const MutTensor& out) override {
    return Pass(stream, {x, out});
  }
  absl::Status ExchangeRows(Stream& stream, const ConstTensor& x, std::vector<RowMove> rows,
                            const MutTensor& out) override {
    CopyBytes(stream, x.ref, out.ref, rows.size() * static_cast<size_t>(x.cols) * DTypeSize(x.dtype));
    return absl::OkStatus();
  }

 private:
  class Addresses final : public Buffer {
   public:
    Addresses(size_t bytes, MemoryKind kind)
        : Buffer(static_cast<std::byte*>(mmap(nullptr, std::max<size_t>(bytes, 1), PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)),
                 bytes),
          kind(kind) {
      RUNAHEAD_CHECK(data_ != MAP_FAILED);
    }
    ~Addresses() override { munmap(data_, std::max<size_t>(size_, 1)); }
    const MemoryKind kind;
  };
  struct Line final : public Stream {
    double end_s = 0;  // when all that is enqueued has run
  };
  struct Mark final : public NativeEvent {
    explicit Mark(double at_s) : at_s(at_s) {}
    const double at_s;
  };
  struct Moment final : public TimeMark {
    explicit Moment(double at_s) : at(absl::UnixEpoch() + absl::Seconds(at_s)) {}
    std::optional<absl::Time> time() const override { return at; }
    const absl::Time at;
  };
  class Shape final : public Weights {
   public:
    Shape(int64_t rows, int64_t cols) : Weights(rows, cols) {}
    ConstBufferRef HomeFrom(int64_t) const override { return {}; }
  };
  class Table final : public KvTable {
   public:
    explicit Table(const KvLayout& layout) : KvTable(layout, PiecesOf(layout)) {}

   private:
    static int64_t PiecesOf(const KvLayout& layout) {
      int64_t pieces = 0;
      for (const KvSequence& sequence : layout.sequences) {
        const int64_t tokens = PieceTokens(sequence.length);
        pieces += sequence.queries == 1 ? (sequence.length + tokens - 1) / tokens : 0;
      }
      return pieces;
    }
  };

  static Line& LineOf(Stream& stream) { return static_cast<Line&>(stream); }
  static double BytesOf(const Tensor& x) {
    return static_cast<double>(x.rows * x.cols) * static_cast<double>(DTypeSize(x.dtype));
  }
  static bool IsOnDevice(const BufferRef& ref) {
    const auto* memory = dynamic_cast<const Addresses*>(ref.buffer.get());
    return memory != nullptr && memory->kind == MemoryKind::kDevice;
  }

  void Count(int64_t& count) {
    MutexLock lock(mu_);
    ++count;
  }
  void Call() {
    fetches_ = false;
    ++counts.calls;
    host_s_ += rates_.call_s;
  }
  // Work of one stream and, where it is given, of a part of the machine that streams share.
  void Run(Stream& stream, double seconds, double* shared_end_s = nullptr) {
    MutexLock lock(mu_);
    Call();
    ++counts.launches;
    double& end_s = LineOf(stream).end_s;
    end_s = std::max(end_s, host_s_) + rates_.launch_s;
    if (shared_end_s != nullptr) end_s = std::max(end_s, *shared_end_s);
    end_s += seconds;
    if (shared_end_s != nullptr) *shared_end_s = end_s;
  }
  absl::Status Pass(Stream& stream, const std::vector<Tensor>& tensors) {
    double bytes = 0;
    for (const Tensor& tensor : tensors) bytes += BytesOf(tensor);
    Run(stream, bytes / rates_.memory_bytes_per_s);
    return absl::OkStatus();
  }
  void CopyBytes(Stream& stream, const BufferRef& from, const BufferRef& to, size_t bytes) {
    const bool from_device = IsOnDevice(from), to_device = IsOnDevice(to);
    if (from_device == to_device) return Run(stream, 2 * static_cast<double>(bytes) / rates_.memory_bytes_per_s);
    Run(stream, static_cast<double>(bytes) / rates_.link_bytes_per_s, &link_end_s_[to_device ? 0 : 1]);
  }

  const SimulatedRates rates_;
  Mutex mu_;
  bool waited_ = true;
  bool fetches_ = false;  // the call before made a table, too: a GPU fetches both at once (CudaStream::Upload)
  double host_s_ = 0;
  std::array<double, 2> link_end_s_ = {};  // to the device, and back
  std::vector<EventSource> unfired_;
};

}  // namespace runahead::testing
