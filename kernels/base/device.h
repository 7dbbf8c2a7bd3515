// The device: memory, streams, events and the ops of the forward pass. The CPU and CUDA honour the same contract.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/base/buffer.h"
#include "kernels/base/dtype.h"
#include "kernels/base/event.h"
#include "kernels/base/kv_table.h"
#include "kernels/base/op_params.h"
#include "kernels/base/tensor.h"
#include "kernels/base/time_mark.h"
#include "kernels/base/weights.h"

namespace runahead {

// A queue of operations that run one after the other; streams run beside each other. Used by one thread at a time.
// Destroying a stream waits for what was enqueued.
class Stream {
 public:
  virtual ~Stream() = default;
};

// Where memory lives. On the CPU device all kinds are host memory; only copies between kDevice and kHost are paced.
enum class MemoryKind { kDevice, kHost };

// Which forms of a weight matrix LoadWeights prepares; a bit set.
enum WeightUse : unsigned {
  kUsePrefill = 1,  // Linear on many rows: packed for GEMM in the compute dtype
  kUseDecode = 2,   // batch-invariant Linear and Embed: kept as stored (quantised)
  // Beside the others: the forms lie in one block of kHost memory, their home, and no op takes them there.
  kUseStreamed = 4,
};

struct LinearOptions {
  bool accumulate = false;  // out += x * w^T instead of out = x * w^T (the residual connection)
  bool batch_invariant =
      false;  // the result of a row is bitwise the same whatever rows are beside it, and on any number of threads
  // Of w's rows as many as out has columns, from this one on. Where w's prefill form is multiplied they begin and end
  // at cuts of its source.
  int64_t first_row = 0;
  // Not with batch_invariant. How many rows there are in each block of x's, from the first row on: a row's result is
  // bitwise the same whatever other blocks there are; the bias may be rounded to out's dtype first. Empty: all are one
  // block.
  std::vector<int32_t> blocks = {};
  ConstTensor bias = {};                      // f32 [1, n], added to every row; without a buffer: none
  std::optional<Activation> activation = {};  // of what was added up, bias included; not with accumulate
};

// What attention does in a layer, and what its KV rows are: [K|V][kv_heads*head_dim] in the KV dtype, K after RoPE.
struct AttentionShape {
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads
  int64_t head_dim = 0;
  DType kv_dtype = DType::kF32;
  float scale = 1.0f;  // usually 1/sqrt(head_dim)
  int64_t window = 0;  // a query at position p sees positions p - window + 1 .. p; 0: all up to p
  float soft_cap = 0;  // a score, scaled, becomes soft_cap * tanh(score / soft_cap); 0: it stays
  int64_t kv_row_bytes() const { return 2 * kv_heads * head_dim * static_cast<int64_t>(DTypeSize(kv_dtype)); }
};

// Which elements of a head are rotated together, and by how much at each position.
struct Rotation {
  // f32 [positions, dims]: cos[dims/2] | sin[dims/2]. dims is even and at most head_dim: the first `dims` elements of a
  // head are rotated, the others stay.
  ConstTensor table;
  bool interleaved = false;  // pair i is elements (2i, 2i + 1) instead of (i, i + dims/2)
};

// Of Device::CopyAll: sizes agree.
struct CopyPart {
  ConstBufferRef from;
  BufferRef to;
};

// What rows of Device::Sample name by their index. One of which no row names a row may be without a buffer.
struct SampleTables {
  MutTensor counts = {};     // int32 [n, vocab] in a f32-sized tensor
  ConstTensor bias = {};     // f32 [n, vocab], of finite numbers
  ConstTensor allowed = {};  // masks: uint32 [n, MaskWords(vocab)] in a f32-sized tensor
};

// Operations enqueue on `stream` and return argument errors only; what happens later is in events' statuses.
// Buffers are held until the operation has run. Shapes in comments are [rows, cols].
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string_view name() const = 0;          // "cpu", "cuda:0"
  virtual bool host_reads_device_memory() const = 0;  // links and hand-off may read and write kDevice memory themselves
  // kHost memory is across a link, and much of it is to be copied, not read by ops: a GPU's, or an emulated link.
  virtual bool has_host_link() const = 0;
  // What GEMMs multiply in and activations are kept in between ops: f32, bf16 (or f16).
  virtual DType compute_dtype() const = 0;
  // What products are computed in, for those that must agree: the name of compute_dtype(), or "int8" where Linear
  // multiplies quantised weights with activations that it quantises to 8 bits, by row and block of 32.
  virtual std::string_view numerics() const { return DTypeName(compute_dtype()); }
  // What models keep KV in: compute_dtype(), or what the device was told.
  virtual DType kv_dtype() const { return compute_dtype(); }
  // The dtype that Linear reads under `batch_invariant`; without it Linear reads compute_dtype().
  virtual DType invariant_dtype() const = 0;
  // Rows that Linear works best on at a time: passes over longer batches are cut into pieces of so many.
  virtual int64_t gemm_rows() const = 0;
  // INVALID_ARGUMENT, with those that it takes, where attention cannot have heads of so many elements.
  virtual absl::Status CheckHeadDim(int64_t head_dim) const = 0;
  // For people: why attention over heads of so many elements is slower than it could be here, and which are not. Empty:
  // it is not.
  virtual std::string SlowHeads(int64_t) const { return {}; }

  // RESOURCE_EXHAUSTED with both sizes when the device's budget does not allow it. 64-byte aligned or better.
  virtual absl::StatusOr<std::shared_ptr<Buffer>> Allocate(size_t bytes, MemoryKind kind) = 0;
  // Bytes of kDevice memory that the budget still allows; the largest size_t without a budget.
  virtual size_t memory_left() const = 0;
  virtual std::unique_ptr<Stream> NewStream(std::string_view name) = 0;

  // Prepares a weight matrix for `uses` (WeightUse bits). Blocks; may be called from several threads at once.
  virtual absl::StatusOr<std::shared_ptr<const Weights>> LoadWeights(const WeightSource& source, unsigned uses) = 0;
  // The matrix of `streamed`, loaded with kUseStreamed, for ops that run when the bytes of its home are in `slot`:
  // kDevice memory of as many bytes, which the result holds. Enqueues nothing: the caller copies, and orders copies and
  // ops by events. INVALID_ARGUMENT for a slot of another size or alignment, or weights without a home.
  virtual absl::StatusOr<std::shared_ptr<const Weights>> WeightsAt(const Weights& streamed, const BufferRef& slot) = 0;

  virtual Event Record(Stream& stream) = 0;  // fires exactly once, when all before it has run
  // When that is. Nothing of the host runs for it, and the stream waits for nothing.
  virtual std::shared_ptr<const TimeMark> MarkTime(Stream& stream) = 0;
  // On the device, not on the thread; any status of the event lets the stream go on. A GPU's driver that loads a kernel
  // may wait until no stream waits, and take no call meanwhile: so the event must not need a call to that driver to
  // fire, unless it is one of the device's own streams.
  virtual void WaitFor(Stream& stream, const Event& event) = 0;
  // A short host function, in stream order. The stream waits for it, on a GPU for some ten microseconds and more.
  virtual void Call(Stream& stream, std::function<void()> function) = 0;
  virtual absl::Status Copy(Stream& stream, const ConstBufferRef& from, const BufferRef& to) = 0;  // sizes agree
  // The same of all parts, in any order, which do not overlap: one call where each Copy would be one.
  virtual absl::Status CopyAll(Stream& stream, std::vector<CopyPart> parts) = 0;
  // What is enqueued between the two may go to the device as one piece, kept for the next time that the same ops come
  // on the same buffers with other contents (CUDA: a graph, which saves most of the time between small ops). Record,
  // WaitFor and Call end a piece and begin the next. Not nested.
  virtual void BeginStep(Stream& stream) = 0;
  virtual void EndStep(Stream& stream) = 0;

  // out[t] = row ids[t] of `table`, or with `accumulate` that is added to it. out: f32 [ids.size(), dim]; ids in [0,
  // table rows).
  virtual absl::Status Embed(Stream& stream, const Weights& table, std::vector<int32_t> ids, bool accumulate,
                             const MutTensor& out) = 0;
  // out[t,d] = x[t,d] * weight[d] / sqrt(mean_d(x[t,d]^2) + eps).  x: f32 [t, dim]; weight: f32 [1, dim]; out: [t,
  // dim], any dtype.
  virtual absl::Status RmsNorm(Stream& stream, const ConstTensor& x, const ConstTensor& weight, float eps,
                               const MutTensor& out) = 0;
  // Every head_dim columns of x are a head; each is normed in place, as RmsNorm does a row. x: f32 [t, n*head_dim],
  // which may be some columns of a wider tensor; weight: f32 [1, head_dim], the same for all heads.
  virtual absl::Status HeadNorm(Stream& stream, const MutTensor& x, int64_t head_dim, const ConstTensor& weight,
                                float eps) = 0;
  // out[t,d] = (x[t,d] - mean(x[t])) / sqrt(var(x[t]) + eps) * weight[d] + bias[d], var = mean_d((x[t,d] - mean)^2).
  // x: f32 [t, dim]; weight, bias: f32 [1, dim]; out: [t, dim], any dtype.
  virtual absl::Status LayerNorm(Stream& stream, const ConstTensor& x, const ConstTensor& weight,
                                 const ConstTensor& bias, float eps, const MutTensor& out) = 0;
  // out[t,n] (+)= activation(sum_k x[t,k] * w[n,k] + bias[n]).  x: [t, k] in compute_dtype() or invariant_dtype(); w:
  // rows n, cols k, or with options.first_row n rows of more; out: f32 or (not accumulating) a shorter dtype of the
  // device, [t, n].
  virtual absl::Status Linear(Stream& stream, const ConstTensor& x, std::shared_ptr<const Weights> w,
                              const LinearOptions& options, const MutTensor& out) = 0;
  // Plans the layout, once for all layers, and enqueues what the ops below need of it: they come behind it on this
  // stream, in the same step or, like it, in none. INVALID_ARGUMENT for a layout that cannot be.
  virtual absl::StatusOr<std::shared_ptr<const KvTable>> MakeKvTable(Stream& stream, KvLayout layout) = 0;
  // In the next ops the table is one of this device and stream, and `layer` is the base of a layer: the rows of all
  // pages. Where there is a first_row, row t of the tensors is the table's query row first_row + t: a chunk of them.

  // Rotates each head of row t in place, by rotation.table's row of its position: a pair (a, b) becomes
  // (a*cos - b*sin, b*cos + a*sin), computed in f32. x: [t, n*head_dim] in any dtype of the device, which may be some
  // columns of a wider tensor.
  virtual absl::Status Rope(Stream& stream, const MutTensor& x, int64_t head_dim, const Rotation& rotation,
                            const KvTable& table, int64_t first_row) = 0;
  // Splits qkv, f32 [t, (heads + 2*kv_heads)*head_dim]: Q goes to q [t, heads*head_dim], in q's dtype, and (K|V) to the
  // row of its position, which the table must have. Where q has no buffer, qkv is K and V alone: [t,
  // 2*kv_heads*head_dim].
  virtual absl::Status StoreQkv(Stream& stream, const ConstTensor& qkv, const AttentionShape& shape, const MutTensor& q,
                                const KvTable& table, int64_t first_row, const BufferRef& layer) = 0;
  // Causal softmax attention of prompts: a query sees the KV rows of all positions up to its own, or the window's last
  // of them: rows that no query sees are not read. The table has all positions of its sequences. q, out: [table.rows(),
  // heads*head_dim].
  virtual absl::Status Attention(Stream& stream, const ConstTensor& q, const AttentionShape& shape,
                                 const KvTable& table, const ConstBufferRef& layer, const MutTensor& out) = 0;
  // Attention of a decode step's rows, in two ops, so that KV may lie in several tiers: of sequences with one query
  // each, and in a layout by pieces with several, of which each sees the positions up to its own, and KV that several
  // see is read once. The positions that a query sees are cut into pieces by their number alone (PieceTokens), from
  // position 0 on, and the pieces of all queries are numbered in order: a table that has only some positions of the
  // same sequences numbers them alike, and so does a table of another device, so that what one computed another merges.
  // Row p of `partials`, f32 [table.pieces(), heads*(head_dim+1)], is what piece p gives, in one format on all devices:
  // first for each head the output of softmax over the piece's positions alone, [heads][head_dim]; then for each head
  // the logarithm of its weight, log2(sum of 2^(scores in units of log2)), [heads]. Where a window hides the piece that
  // is -inf, and the outputs mean nothing. Pieces that the table does not have are left as they are.
  virtual absl::Status AttendPieces(Stream& stream, const ConstTensor& q, const AttentionShape& shape,
                                    const KvTable& table, const ConstBufferRef& layer, const MutTensor& partials) = 0;
  // out[t] = the pieces of query t merged in order of position, those of all positions, whichever of them `table`
  // has; rows of partials beyond the last piece are not read. out: [table.rows(), heads*head_dim]. A row is bitwise the
  // same in any batch, beside any other queries of its sequence, wherever its KV lies, in how many calls its pieces
  // were made, and on any number of threads.
  virtual absl::Status MergePieces(Stream& stream, const ConstTensor& partials, const AttentionShape& shape,
                                   const KvTable& table, const MutTensor& out) = 0;
  // out[t,f] = activation(gate_up[t,f]) * gate_up[t,F+f].  gate_up: [t, 2F]; out: [t, F].
  virtual absl::Status GatedActivate(Stream& stream, const ConstTensor& gate_up, Activation activation,
                                     const MutTensor& out) = 0;
  // out[t,f] = activation(x[t,f]).  x, out: [t, f]; out may be x.
  virtual absl::Status Activate(Stream& stream, const ConstTensor& x, Activation activation, const MutTensor& out) = 0;
  // out[t,d] = factor * x[t,d], or with `accumulate` that is added to it.  x, out: f32 [t, d]; out may be x.
  virtual absl::Status Scale(Stream& stream, const ConstTensor& x, float factor, bool accumulate,
                             const MutTensor& out) = 0;
  // x[t,d] = cap * tanh(x[t,d] / cap), in place.  x: f32 [t, d]; cap > 0.
  virtual absl::Status SoftCap(Stream& stream, const MutTensor& x, float cap) = 0;
  // out[i] = x[rows[i]].  x and out: of one dtype and as many columns, in memory apart.
  virtual absl::Status GatherRows(Stream& stream, const ConstTensor& x, std::vector<int32_t> rows,
                                  const MutTensor& out) = 0;
  // out[rows[i].to] = x[rows[i].from], across the link and without waiting for copies that are on their way: the device
  // loads and stores host memory of its own itself (CUDA: mapped memory). For some KB that others wait for, and for
  // many short rows; copies of much are faster with Copy. x and out: of one dtype and as many columns, in memory apart;
  // rows: each `to` once.
  virtual absl::Status ExchangeRows(Stream& stream, const ConstTensor& x, std::vector<RowMove> rows,
                                    const MutTensor& out) = 0;
  // For host stores that hold quantised KV, or quantised X.
  // Rows [t, n] in any dtype to and from their quantised form (op_params.h), t * KvQuantRowBytes(n, quant) bytes or
  // more from an offset that is a multiple of 4; n is a multiple of the group.
  virtual absl::Status QuantizeKv(Stream& stream, const ConstTensor& rows, const KvQuant& quant,
                                  const BufferRef& out) = 0;
  virtual absl::Status DequantizeKv(Stream& stream, const ConstBufferRef& from, const KvQuant& quant,
                                    const MutTensor& out) = 0;
  // Per row of logits f32 [t, vocab] the k largest, in falling order, ties to the smaller id; k <= 512.
  // ids: int32 [t, k] in a f32-sized tensor; values: f32 [t, k]; log_sum: f32 [t, 1] = log(sum_v exp(logits[t,v])).
  virtual absl::Status TopK(Stream& stream, const ConstTensor& logits, int64_t k, const MutTensor& ids,
                            const MutTensor& values, const MutTensor& log_sum) = 0;
  // ids[t]: the token that params[t] draws from row t of logits f32 [t, vocab], of the ids that its mask allows: bias,
  // penalties, temperature, then top-k, top-p over what top-k left, min-p; then the first id, in rising order, at which
  // the running sum of what is left passes `uniform` of its total. Ties go to the smaller id. kNotFinite where a logit
  // is not finite, kNothingAllowed where the mask is empty. values[t]: the logit of ids[t] before bias and penalties; of
  // no meaning beside these two. ids: int32 [t, 1] in a f32-sized tensor; values: f32 [t, 1].
  // A row of tables.counts belongs to a sequence: 0 for an id that the sequence does not have, else 1 + how often its
  // output has it. The caller fills it once, from then on params bring each token; doing so again changes nothing.
  // Several rows of a sequence name the same row of it; one of them at most has tokens to keep, which the others know as
  // well. A row's result does not depend on the rows beside it; between devices it may differ where sums are within
  // rounding of a border.
  virtual absl::Status Sample(Stream& stream, const ConstTensor& logits, std::vector<SampleParams> params,
                              const SampleTables& tables, const MutTensor& ids, const MutTensor& values) = 0;
};

}  // namespace runahead
