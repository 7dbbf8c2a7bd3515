// How much memory may be taken for one kind of thing, and what of it is taken.
#pragma once

#include <cstdint>

#include "kernels/base/mutex.h"

namespace runahead {

// Thread-safe. Outlives its leases.
class ByteBudget {
 public:
  explicit ByteBudget(int64_t bytes) : bytes_(bytes) {}
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  // Bytes that were taken; gives them back when destroyed. Movable; an empty one has taken nothing. For one thread.
  class [[nodiscard]] Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&& other) noexcept;
    ~Lease();

    // Takes more, or gives some back. False where so many more are not left: then it stays as it was. An empty lease is
    // of no budget and takes whatever it is asked for.
    [[nodiscard]] bool Resize(int64_t bytes);
    // Gives `bytes` of what it has, at most all, to another lease.
    Lease Split(int64_t bytes);
    int64_t bytes() const { return bytes_; }
    const ByteBudget* budget() const { return budget_; }  // null: of none

   private:
    friend class ByteBudget;
    Lease(ByteBudget* budget, int64_t bytes) : budget_(budget), bytes_(bytes) {}
    ByteBudget* budget_ = nullptr;
    int64_t bytes_ = 0;
  };

  // An empty-handed lease of this budget, to be resized.
  Lease None() { return {this, 0}; }

  int64_t bytes() const { return bytes_; }
  int64_t taken() const RUNAHEAD_EXCLUDES(mu_);
  int64_t refusals() const RUNAHEAD_EXCLUDES(mu_);  // how often so much was not left

 private:
  bool Change(int64_t by) RUNAHEAD_EXCLUDES(mu_);

  const int64_t bytes_;
  mutable Mutex mu_;
  int64_t taken_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  int64_t refusals_ RUNAHEAD_GUARDED_BY(mu_) = 0;
};

}  // namespace runahead
