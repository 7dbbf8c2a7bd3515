#include "server/grammar/late_masks.h"

#include <utility>

namespace runahead {

class LateMasks::Form final : public FormMasks {
 public:
  Form(std::shared_ptr<LateMasks> all, int64_t number) : all_(std::move(all)), number_(number) {}

  std::shared_ptr<const void> Find(const MaskStateId& id) override { return all_->Find(KeyOf(id)); }
  void Keep(const MaskStateId& id, std::shared_ptr<const void> mask, size_t bytes) override {
    all_->Keep({KeyOf(id), std::move(mask), bytes + sizeof(Entry)});
  }

 private:
  Key KeyOf(const MaskStateId& id) const { return {number_, id.rule, id.sequence, id.element, id.part}; }

  const std::shared_ptr<LateMasks> all_;
  const int64_t number_;
};

std::unique_ptr<FormMasks> LateMasks::OfNewForm(std::shared_ptr<LateMasks> all) {
  int64_t number = 0;
  {
    MutexLock lock(all->mu_);
    number = all->forms_++;
  }
  return std::make_unique<Form>(std::move(all), number);
}

size_t LateMasks::bytes() const {
  MutexLock lock(mu_);
  return bytes_;
}

std::shared_ptr<const void> LateMasks::Find(const Key& key) {
  MutexLock lock(mu_);
  const auto it = entries_.find(key);
  if (it == entries_.end()) return nullptr;
  recent_.splice(recent_.begin(), recent_, it->second);
  return it->second->mask;
}

// Two threads may have made the same one: the first stays.
void LateMasks::Keep(Entry entry) {
  MutexLock lock(mu_);
  if (entries_.contains(entry.key)) return;
  bytes_ += entry.bytes;
  recent_.push_front(std::move(entry));
  entries_[recent_.front().key] = recent_.begin();
  while (bytes_ > max_bytes_ && !recent_.empty()) {
    bytes_ -= recent_.back().bytes;
    entries_.erase(recent_.back().key);
    recent_.pop_back();
  }
}

}  // namespace runahead
