#include "kernels/base/thread_pool.h"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

// How long a thread looks for work before it blocks: longer than the serial gap between two loops of a decode step,
// short enough not to take a core from another process on a small machine.
constexpr auto kSpin = std::chrono::microseconds(30);

// The low half of a ticket counts the items that nobody has claimed yet; the high half is the number of the loop.
constexpr uint64_t kUnclaimedMask = 0xffffffffu;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Spins until `done` or the spin time is over; returns the last value of `done`.
template <typename Done>
bool SpinUntil(const Done& done) {
  const auto until = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      if (done()) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < until);
  return done();
}

}  // namespace

struct ThreadPool::Impl {
  // One compare-and-swap on the ticket claims an item and proves that `count` and `body`, read just before it, belong
  // to the same loop: a loop ends only when its claimed items have run, and only then are they written again.
  std::atomic<uint64_t> ticket{0};
  std::atomic<int64_t> count{0};
  std::atomic<const std::function<void(int64_t)>*> body{nullptr};
  std::atomic<int64_t> unfinished{0};

  Mutex loop_mu;  // held by the caller whose loop is running
  uint64_t loop RUNAHEAD_GUARDED_BY(loop_mu) = 0;

  Mutex sleep_mu;
  CondVar work_cv;  // workers wait here for items
  CondVar done_cv;  // the caller waits here for the last item
  std::atomic<int> sleeping_workers{0};
  std::atomic<bool> caller_sleeps{false};
  std::atomic<bool> stopping{false};

  std::vector<std::thread> workers;

  bool HasWork() const { return (ticket.load(std::memory_order_seq_cst) & kUnclaimedMask) != 0; }

  // Claims and runs one item; false when none is left.
  bool RunItem() {
    uint64_t seen = ticket.load(std::memory_order_acquire);
    while ((seen & kUnclaimedMask) != 0) {
      const int64_t items = count.load(std::memory_order_relaxed);
      const auto* run = body.load(std::memory_order_relaxed);
      if (!ticket.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      (*run)(items - static_cast<int64_t>(seen & kUnclaimedMask));
      if (unfinished.fetch_sub(1, std::memory_order_seq_cst) == 1 && caller_sleeps.load(std::memory_order_seq_cst)) {
        MutexLock lock(sleep_mu);
        done_cv.NotifyAll();
      }
      return true;
    }
    return false;
  }

  void Work() {
    while (!stopping.load(std::memory_order_relaxed)) {
      if (RunItem()) continue;
      if (SpinUntil([this] { return HasWork() || stopping.load(std::memory_order_relaxed); })) continue;
      MutexLock lock(sleep_mu);
      sleeping_workers.fetch_add(1, std::memory_order_seq_cst);
      while (!HasWork() && !stopping.load(std::memory_order_relaxed)) work_cv.Wait(sleep_mu);
      sleeping_workers.fetch_sub(1, std::memory_order_seq_cst);
    }
  }

  void AwaitItems() {
    const auto done = [this] { return unfinished.load(std::memory_order_seq_cst) == 0; };
    if (SpinUntil(done)) return;
    MutexLock lock(sleep_mu);
    caller_sleeps.store(true, std::memory_order_seq_cst);
    while (!done()) done_cv.Wait(sleep_mu);
    caller_sleeps.store(false, std::memory_order_seq_cst);
  }
};

void StepBack(int nice) {
  if (nice == 0) return;
  // Linux has a priority for each thread. A hint: failing costs speed only.
  const auto self = static_cast<id_t>(gettid());
  setpriority(PRIO_PROCESS, self, getpriority(PRIO_PROCESS, self) + nice);
}

ThreadPool::ThreadPool(int threads, int nice) : impl_(std::make_unique<Impl>()) {
  RUNAHEAD_CHECK(threads >= 1);
  for (int i = 1; i < threads; ++i) {
    impl_->workers.emplace_back([impl = impl_.get(), nice] {
      StepBack(nice);
      impl->Work();
    });
  }
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(impl_->sleep_mu);
    impl_->stopping.store(true, std::memory_order_relaxed);
    impl_->work_cv.NotifyAll();
  }
  for (std::thread& worker : impl_->workers) worker.join();
}

int ThreadPool::threads() const {
  return static_cast<int>(impl_->workers.size()) + 1;
}

void ThreadPool::ParallelFor(int64_t count, const std::function<void(int64_t)>& body) {
  RUNAHEAD_CHECK(count <= static_cast<int64_t>(kUnclaimedMask));
  if (count <= 1 || impl_->workers.empty()) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  Impl& impl = *impl_;
  MutexLock lock(impl.loop_mu);
  impl.count.store(count, std::memory_order_relaxed);
  impl.body.store(&body, std::memory_order_relaxed);
  impl.unfinished.store(count, std::memory_order_relaxed);
  impl.ticket.store((++impl.loop << 32) | static_cast<uint64_t>(count), std::memory_order_seq_cst);
  if (impl.sleeping_workers.load(std::memory_order_seq_cst) > 0) {
    MutexLock sleep_lock(impl.sleep_mu);
    impl.work_cv.NotifyAll();
  }
  while (impl.RunItem()) {
  }
  impl.AwaitItems();
}

}  // namespace runahead
