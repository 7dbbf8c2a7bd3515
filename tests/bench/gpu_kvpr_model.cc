#include "tests/bench/gpu_kvpr_model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>

#include "tests/bench/gpu_model.h"
#include "tests/bench/random_values.h"
#include "tests/testing/gguf_builder.h"
#include "worker/format/gguf.h"

namespace runahead {
namespace {

constexpr int64_t kAlignment = 32;  // of a GGUF's tensors
constexpr int64_t kRandomRows =
    509;  // of a matrix, then they come again; a prime, so that no two matrices are the same

int64_t Aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Tensors one after the other: norms are ones, biases zeros, and matrices rows of one random block.
class RandomTensors final : public TensorSink {
 public:
  RandomTensors(GgufBuilder& file, DType dtype, int64_t hidden)
      : file_(file), random_(RandomValues(dtype, kRandomRows * hidden, 1 / std::sqrt(static_cast<float>(hidden)), 1)) {}

  void Matrix(const std::string& name, WeightType type, int64_t columns, int64_t rows, float) override {
    Add({Part::kMatrix, 0, static_cast<int64_t>(WeightRowBytes(type, columns)) * rows}, name, type,
        {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows)});
  }
  void Norm(const std::string& name, int64_t size) override {
    Add({Part::kOnes, 0, 4 * size}, name, WeightType::kF32, {static_cast<uint64_t>(size)});
  }
  void Bias(const std::string& name, int64_t size) override {
    Add({Part::kZeros, 0, 4 * size}, name, WeightType::kF32, {static_cast<uint64_t>(size)});
  }

  // Ones stand for them.
  void Values(const std::string& name, const std::vector<float>& values) override {
    Norm(name, static_cast<int64_t>(values.size()));
  }

  int64_t bytes() const { return bytes_; }
  // Fills memory of bytes().
  void Fill(std::byte* data) const {
    int64_t from = 0;  // in the block, where the next matrix begins
    const auto size = static_cast<int64_t>(random_.size());
    for (const Part& part : parts_) {
      std::byte* const begin = data + part.begin;
      if (part.is == Part::kZeros) std::memset(begin, 0, part.bytes);
      const float one = 1;
      for (int64_t at = 0; part.is == Part::kOnes && at < part.bytes; at += 4) std::memcpy(begin + at, &one, 4);
      if (part.is != Part::kMatrix) continue;
      for (int64_t at = 0; at < part.bytes;) {
        const int64_t take = std::min(part.bytes - at, size - from);
        std::memcpy(begin + at, random_.data() + from, take);
        at += take;
        from = (from + take) % size;
      }
    }
  }

 private:
  struct Part {
    enum { kMatrix, kOnes, kZeros } is;
    int64_t begin, bytes;
  };
  void Add(Part part, const std::string& name, WeightType type, const std::vector<uint64_t>& dims) {
    part.begin = Aligned(bytes_);
    file_.AddTensorEntry(name, static_cast<uint32_t>(type), dims, static_cast<uint64_t>(part.begin));
    bytes_ = part.begin + part.bytes;
    parts_.push_back(part);
  }

  GgufBuilder& file_;
  const std::vector<std::byte> random_;
  std::vector<Part> parts_;
  int64_t bytes_ = 0;
};

}  // namespace

std::vector<SyntheticModel> KvprModels(const Bench& bench) {
  SyntheticModel llama;
  llama.name = "llama-2-7b";
  llama.layers = bench.layers;
  llama.hidden = 4096;
  llama.heads = llama.kv_heads = 32;
  llama.ffn = 11008;
  llama.vocab = 32000;
  llama.context_length = 4096;
  llama.tied = false;
  llama.SetWeightType(WeightTypeOf(bench.device->compute_dtype()));
  SyntheticModel opt = llama;
  opt.name = "opt-6.7b";
  opt.family = SyntheticFamily::kOpt;
  opt.ffn = 16384;
  opt.vocab = 50272;
  opt.context_length = 2048;
  opt.tied = true;
  SyntheticModel newer = llama;
  newer.name = "llama-3-8b";
  newer.kv_heads = 8;
  newer.ffn = 14336;
  newer.vocab = 128256;
  newer.context_length = 8192;
  newer.rope_base = 500000;
  std::vector<SyntheticModel> models = {opt, llama, newer};
  if (!bench.tiny) return models;
  for (SyntheticModel& model : models) {
    model.name += ", tiny";
    model.kv_heads = model.kv_heads == model.heads ? 4 : 2;
    model.heads = 4;
    model.hidden = 128;
    model.ffn = 192;
    model.vocab = 320;
  }
  return models;
}

absl::StatusOr<std::shared_ptr<const ModelFile>> RandomGguf(const SyntheticModel& model) {
  const DType dtype = model.ffn_type == WeightType::kF32    ? DType::kF32
                      : model.ffn_type == WeightType::kBF16 ? DType::kBF16
                                                            : DType::kF16;
  GgufBuilder file(kAlignment);
  RandomTensors tensors(file, dtype, model.hidden);
  if (const absl::Status status = AddSyntheticModel(model, file, tensors); !status.ok()) return status;
  const std::string head = file.Head();
  const size_t bytes = head.size() + static_cast<size_t>(tensors.bytes());
  const std::shared_ptr<std::byte[]> whole(new std::byte[bytes]);  // some GiB, which are not cleared first
  std::memcpy(whole.get(), head.data(), head.size());
  tensors.Fill(whole.get() + head.size());
  return ParseGguf(model.name, absl::MakeConstSpan(whole.get(), bytes), whole);
}

}  // namespace runahead
