// Masks of the states of forms that are made when they are first needed, for all answers that come there later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "kernels/base/mutex.h"
#include "server/grammar/grammar_work.h"

namespace runahead {

// Keeps masks of any number of forms up to some bytes; those that were not asked for longest go first, and are made
// again where they are needed. Thread-safe.
class LateMasks {
 public:
  explicit LateMasks(size_t max_bytes) : max_bytes_(max_bytes) {}

  // The masks of one more form. What they are about is known by the form alone: nothing of another one is found.
  static std::unique_ptr<FormMasks> OfNewForm(std::shared_ptr<LateMasks> all);

  size_t bytes() const RUNAHEAD_EXCLUDES(mu_);

 private:
  class Form;
  using Key = std::tuple<int64_t, int32_t, int32_t, int32_t, int32_t>;  // the form, and a MaskStateId
  struct Entry {
    Key key;
    std::shared_ptr<const void> mask;
    size_t bytes = 0;
  };

  std::shared_ptr<const void> Find(const Key& key) RUNAHEAD_EXCLUDES(mu_);
  void Keep(Entry entry) RUNAHEAD_EXCLUDES(mu_);

  const size_t max_bytes_;
  mutable Mutex mu_;
  int64_t forms_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  std::list<Entry> recent_ RUNAHEAD_GUARDED_BY(mu_);  // the newest first
  absl::flat_hash_map<Key, std::list<Entry>::iterator> entries_ RUNAHEAD_GUARDED_BY(mu_);
  size_t bytes_ RUNAHEAD_GUARDED_BY(mu_) = 0;
};

}  // namespace runahead
