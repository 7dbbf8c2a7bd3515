#include "tests/testing/reference_llama.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "worker/format/dequantize.h"

namespace runahead {
namespace {

using Vec = std::vector<double>;

struct Matrix {
  int64_t rows, cols;
  std::vector<float> values;
  Vec Times(const Vec& x) const {
    Vec out(rows, 0.0);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) out[r] += static_cast<double>(values[r * cols + c]) * x[c];
    }
    return out;
  }
};

Matrix Load(const ModelFile& file, const std::string& name) {
  const FileTensor& tensor = **file.FindTensor(name);
  Matrix matrix{tensor.rows(), tensor.columns(), {}};
  matrix.values.resize(matrix.rows * matrix.cols);
  const size_t row_bytes = tensor.data.size() / matrix.rows;
  for (int64_t r = 0; r < matrix.rows; ++r) {
    DequantizeRow(tensor.type, tensor.data.data() + r * row_bytes, matrix.cols, &matrix.values[r * matrix.cols]);
  }
  return matrix;
}

Vec RmsNorm(const Vec& x, const Matrix& weight, double eps) {
  double squares = 0;
  for (double value : x) squares += value * value;
  const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
  Vec out(x.size());
  for (size_t i = 0; i < x.size(); ++i) out[i] = x[i] * scale * weight.values[i];
  return out;
}

// GGUF's rows are in the interleaved order: elements (2i, 2i+1) of a head rotate together. The result is written in the
// rotate-half order: 2i to i, 2i+1 to i + half.
Vec Rotate(const Vec& x, int64_t heads, int64_t head_dim, int64_t position, double base) {
  Vec out(x.size());
  const int64_t half = head_dim / 2;
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * std::pow(base, -2.0 * i / head_dim);
      const double a = x[head * head_dim + 2 * i], b = x[head * head_dim + 2 * i + 1];
      out[head * head_dim + i] = a * std::cos(angle) - b * std::sin(angle);
      out[head * head_dim + half + i] = a * std::sin(angle) + b * std::cos(angle);
    }
  }
  return out;
}

struct Shape {
  int64_t heads, kv_heads, head_dim;
};

// Query of the last of `tokens` positions over kv [tokens][K|V][kv_dim].
Vec Attend(const Vec& q, const Vec& kv, int64_t tokens, const Shape& shape) {
  Vec out(q.size(), 0.0);
  const int64_t kv_dim = shape.kv_heads * shape.head_dim;
  for (int64_t head = 0; head < shape.heads; ++head) {
    const int64_t kv_head = head / (shape.heads / shape.kv_heads);
    Vec weights(tokens);
    double sum = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      double score = 0;
      for (int64_t d = 0; d < shape.head_dim; ++d) {
        score += q[head * shape.head_dim + d] * kv[t * 2 * kv_dim + kv_head * shape.head_dim + d];
      }
      weights[t] = std::exp(score / std::sqrt(static_cast<double>(shape.head_dim)));
      sum += weights[t];
    }
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t d = 0; d < shape.head_dim; ++d) {
        out[head * shape.head_dim + d] += weights[t] / sum * kv[t * 2 * kv_dim + kv_dim + kv_head * shape.head_dim + d];
      }
    }
  }
  return out;
}

void AddTo(Vec& x, const Vec& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

}  // namespace

ReferenceOutput RunReferenceLlama(const ModelFile& file, const std::vector<int32_t>& ids) {
  const int64_t layers = *file.GetUint("llama.block_count");
  const int64_t heads = *file.GetUint("llama.attention.head_count");
  const Shape shape{heads, static_cast<int64_t>(*file.GetUint("llama.attention.head_count_kv")),
                    static_cast<int64_t>(*file.GetUint("llama.rope.dimension_count"))};
  const double eps = *file.GetFloat("llama.attention.layer_norm_rms_epsilon");
  const double base = *file.GetFloat("llama.rope.freq_base");

  const Matrix embedding = Load(file, "token_embd.weight");
  std::vector<Vec> x;
  for (int32_t id : ids) {
    const float* row = &embedding.values[id * embedding.cols];
    x.emplace_back(row, row + embedding.cols);
  }
  ReferenceOutput output;
  for (int64_t index = 0; index < layers; ++index) {
    const std::string prefix = absl::StrCat("blk.", index, ".");
    const auto load = [&](const char* name) { return Load(file, prefix + name + ".weight"); };
    const Matrix attention_norm = load("attn_norm"), wq = load("attn_q"), wk = load("attn_k"), wv = load("attn_v");
    const Matrix wo = load("attn_output"), ffn_norm = load("ffn_norm");
    const Matrix gate = load("ffn_gate"), up = load("ffn_up"), down = load("ffn_down");
    Vec& kv = output.kv.emplace_back();
    for (size_t t = 0; t < ids.size(); ++t) {
      const Vec normed = RmsNorm(x[t], attention_norm, eps);
      const Vec k = Rotate(wk.Times(normed), shape.kv_heads, shape.head_dim, t, base);
      const Vec v = wv.Times(normed);
      kv.insert(kv.end(), k.begin(), k.end());
      kv.insert(kv.end(), v.begin(), v.end());
      const Vec q = Rotate(wq.Times(normed), shape.heads, shape.head_dim, t, base);
      AddTo(x[t], wo.Times(Attend(q, kv, t + 1, shape)));
      const Vec hidden = RmsNorm(x[t], ffn_norm, eps);
      Vec gated = gate.Times(hidden);
      const Vec lifted = up.Times(hidden);
      for (size_t i = 0; i < gated.size(); ++i) gated[i] = gated[i] / (1 + std::exp(-gated[i])) * lifted[i];
      AddTo(x[t], down.Times(gated));
    }
  }
  const Matrix output_norm = Load(file, "output_norm.weight");
  const Matrix head = file.FindTensor("output.weight").ok() ? Load(file, "output.weight") : embedding;
  for (const Vec& row : x) output.logits.push_back(head.Times(RmsNorm(row, output_norm, eps)));
  return output;
}

}  // namespace runahead
