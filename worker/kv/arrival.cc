#include "worker/kv/arrival.h"

#include <algorithm>
#include <utility>

#include "kernels/base/status_macros.h"

namespace runahead {

Arrival::Arrival(int64_t layers, int64_t tokens, std::vector<SliceKind> kinds, int64_t kv_from,
                 std::vector<int64_t> hidden)
    : layers_(layers),
      tokens_(tokens),
      kv_from_(kv_from),
      end_(tokens),
      kinds_(std::move(kinds)),
      hidden_(std::move(hidden)),
      covered_(kinds_.size() * layers) {
  hidden_.resize(layers);
  RUNAHEAD_CHECK(kv_from >= 0 && kv_from <= tokens);
  for (const SliceKind kind : kinds_) {
    for (int64_t layer = 0; layer < layers; ++layer) {
      RUNAHEAD_CHECK(hidden_[layer] >= 0 && hidden_[layer] <= tokens);
      const int64_t come = std::max(hidden_[layer], kind == SliceKind::kKv ? kv_from : 0);
      if (come > 0) Add(SetOf(kind, layer), 0, come);
    }
  }
}

void Arrival::EndAt(int64_t tokens) {
  RUNAHEAD_CHECK(under_way_.empty() && tokens >= fixed_ && tokens <= tokens_);
  end_ = tokens;
  for (size_t set = 0; set < covered_.size(); ++set) Add(set, tokens, tokens_);
}

bool Arrival::Has(SliceKind kind) const {
  return std::find(kinds_.begin(), kinds_.end(), kind) != kinds_.end();
}

size_t Arrival::SetOf(SliceKind kind, int64_t layer) const {
  const auto found = std::find(kinds_.begin(), kinds_.end(), kind);
  RUNAHEAD_CHECK(found != kinds_.end() && layer >= 0 && layer < layers_);
  return static_cast<size_t>((found - kinds_.begin()) * layers_ + layer);
}

bool Arrival::Covers(SliceKind kind, int64_t layer, int64_t begin, int64_t end) const {
  return covered_[SetOf(kind, layer)].Covers(begin, end);
}

std::optional<uint64_t> Arrival::Begin(SliceKind kind, int64_t layer, int64_t begin, int64_t end) {
  const size_t set = SetOf(kind, layer);
  for (const UnderWay& other : under_way_) {
    if (other.set == set && other.begin < end && begin < other.end) return std::nullopt;
  }
  under_way_.push_back({next_write_, set, begin, end});
  return next_write_++;
}

int64_t Arrival::Missing(SliceKind kind) const {
  int64_t missing = 0;
  for (int64_t layer = 0; layer < layers_; ++layer) missing += tokens_ - covered_[SetOf(kind, layer)].size();
  return missing;
}

Arrival::Came Arrival::End(uint64_t write, bool arrived) {
  const auto found =
      std::find_if(under_way_.begin(), under_way_.end(), [write](const UnderWay& w) { return w.write == write; });
  RUNAHEAD_CHECK(found != under_way_.end());
  Came came{kinds_[found->set / static_cast<size_t>(layers_)]};
  if (arrived) {
    const int64_t before = covered_[found->set].size();
    Add(found->set, found->begin, found->end);
    came.tokens = covered_[found->set].size() - before;
  }
  under_way_.erase(found);
  return came;
}

int64_t Arrival::layers_complete() const {
  int64_t layers = 0;
  for (int64_t layer = 0; layer < layers_; ++layer) {
    layers +=
        std::all_of(kinds_.begin(), kinds_.end(), [&](SliceKind kind) { return Covers(kind, layer, 0, tokens_); });
  }
  return layers;
}

int64_t Arrival::Settled() const {
  int64_t settled = end_;
  for (const IntervalSet& set : covered_) settled = std::min(settled, set.Prefix());
  for (const UnderWay& write : under_way_) settled = std::min(settled, write.begin);
  return settled;
}

int64_t Arrival::SettledFor(const Arrival& other) const {
  const bool has_kinds =
      std::all_of(other.kinds_.begin(), other.kinds_.end(), [&](SliceKind kind) { return Has(kind); });
  if (!has_kinds || other.kv_from_ < kv_from_) return 0;
  int64_t settled = Settled();
  for (int64_t layer = 0; layer < layers_; ++layer) {
    if (other.hidden_[layer] < hidden_[layer]) settled = std::min(settled, other.hidden_[layer]);
  }
  return settled;
}

void Arrival::Fix(int64_t tokens) {
  RUNAHEAD_CHECK(tokens <= tokens_);
  if (tokens <= fixed_) return;
  fixed_ = tokens;
  for (size_t set = 0; set < covered_.size(); ++set) Add(set, 0, tokens);
}

void Arrival::Add(size_t set, int64_t begin, int64_t end) {
  const bool before = covered_[set].Covers(0, tokens_);
  covered_[set].Add(begin, end);
  if (!before && covered_[set].Covers(0, tokens_)) ++whole_;
}

}  // namespace runahead
