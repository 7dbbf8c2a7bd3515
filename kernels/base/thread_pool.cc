#include "kernels/base/thread_pool.h"

#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "kernels/base/monotonic.h"
#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/thread_name.h"

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

thread_local LoopKind this_threads_kind = LoopKind::kOrdinary;

// The loop of one kind that runs, or is half done while the other kind has its turn.
class Loop {
 public:
  // For one caller at a time; the loop before has ended.
  void Begin(int64_t items, const std::function<void(int64_t)>& run) {
    count_.store(items, std::memory_order_relaxed);
    body_.store(&run, std::memory_order_relaxed);
    unfinished_.store(items, std::memory_order_relaxed);
    ticket_.store((++number_ << 32) | static_cast<uint64_t>(items), std::memory_order_seq_cst);
  }

  bool HasItems() const { return (ticket_.load(std::memory_order_seq_cst) & kUnclaimedMask) != 0; }
  bool finished() const { return unfinished_.load(std::memory_order_seq_cst) == 0; }

  // Claims and runs one item; false when none is left. `last`: it was the last to be finished.
  bool RunItem(bool& last) {
    uint64_t seen = ticket_.load(std::memory_order_acquire);
    while ((seen & kUnclaimedMask) != 0) {
      const int64_t items = count_.load(std::memory_order_relaxed);
      const auto* run = body_.load(std::memory_order_relaxed);
      if (!ticket_.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel, std::memory_order_acquire))
        continue;
      (*run)(items - static_cast<int64_t>(seen & kUnclaimedMask));
      last = unfinished_.fetch_sub(1, std::memory_order_seq_cst) == 1;
      return true;
    }
    return false;
  }

 private:
  // One compare-and-swap on the ticket claims an item and proves that `count_` and `body_`, read just before it, belong
  // to the same loop: a loop ends only when its claimed items have run, and only then are they written again.
  std::atomic<uint64_t> ticket_{0};
  std::atomic<int64_t> count_{0};
  std::atomic<const std::function<void(int64_t)>*> body_{nullptr};
  std::atomic<int64_t> unfinished_{0};
  uint64_t number_ = 0;
};

}  // namespace

struct ThreadPool::Impl {
  std::array<Mutex, 2> loop_mu;  // by kind: held by the caller whose loop is running
  std::array<Loop, 2> loops;
  std::atomic<int> turn{0};              // whose items are claimed
  std::atomic<bool> turn_wanted{false};  // by the other kind

  Mutex turn_mu;
  CondVar turn_cv;  // callers wait here for their turn
  TurnOrder order RUNAHEAD_GUARDED_BY(turn_mu);

  Mutex sleep_mu;
  CondVar work_cv;  // workers wait here for items
  CondVar done_cv;  // callers wait here for the last item
  std::atomic<int> sleeping_workers{0};
  std::atomic<int> sleeping_callers{0};
  std::atomic<bool> stopping{false};

  std::vector<std::thread> workers;

  bool HasWork() const { return loops[turn.load(std::memory_order_seq_cst)].HasItems(); }

  // Runs one item of the kind whose turn it is; false when none is left.
  bool RunItem(int kind) {
    bool last = false;
    if (!loops[kind].RunItem(last)) return false;
    if (last && sleeping_callers.load(std::memory_order_seq_cst) > 0) {
      MutexLock lock(sleep_mu);
      done_cv.NotifyAll();
    }
    if (turn_wanted.load(std::memory_order_relaxed)) PassTurn();
    return true;
  }

  void Work() {
    while (!stopping.load(std::memory_order_relaxed)) {
      if (RunItem(turn.load(std::memory_order_acquire))) continue;
      if (SpinUntil([this] { return HasWork() || stopping.load(std::memory_order_relaxed); })) continue;
      MutexLock lock(sleep_mu);
      sleeping_workers.fetch_add(1, std::memory_order_seq_cst);
      while (!HasWork() && !stopping.load(std::memory_order_relaxed)) work_cv.Wait(sleep_mu);
      sleeping_workers.fetch_sub(1, std::memory_order_seq_cst);
    }
  }

  void AwaitItems(const Loop& loop) {
    if (SpinUntil([&loop] { return loop.finished(); })) return;
    MutexLock lock(sleep_mu);
    sleeping_callers.fetch_add(1, std::memory_order_seq_cst);
    while (!loop.finished()) done_cv.Wait(sleep_mu);
    sleeping_callers.fetch_sub(1, std::memory_order_seq_cst);
  }

  // Before the first item of a loop. Where the turn is the kind's, and nobody waits for it, `order` need not know of
  // the loop, nor of its end: who comes then is level with it, as after a rest.
  void Begin(LoopKind kind) {
    const bool has_turn = turn.load(std::memory_order_relaxed) == static_cast<int>(kind);
    if (!has_turn || turn_wanted.load(std::memory_order_relaxed)) return AwaitTurn(kind);
    WakeWorkers();
  }

  void AwaitTurn(LoopKind kind) {
    {
      MutexLock lock(turn_mu);
      const int own = static_cast<int>(kind);
      while (!order.Take(kind, MonotonicNow())) {
        if (!loops[own].HasItems()) {  // workers have run the rest meanwhile
          order.Withdraw(kind);
          return ShowTurn();
        }
        turn_wanted.store(true, std::memory_order_relaxed);
        // That its last loop is over the other kind may have told nobody (Begin).
        if (loops[1 - own].finished()) order.End(static_cast<LoopKind>(1 - own), MonotonicNow());
        turn_cv.WaitFor(turn_mu, TurnOrder::kBetweenLoops);
      }
      ShowTurn();
    }
    WakeWorkers();
  }

  void WakeWorkers() {
    if (sleeping_workers.load(std::memory_order_seq_cst) == 0) return;
    MutexLock lock(sleep_mu);
    work_cv.NotifyAll();
  }

  void PassTurn() {
    MutexLock lock(turn_mu);
    if (!order.Pass(MonotonicNow())) return;
    ShowTurn();
    turn_cv.NotifyAll();
  }

  void EndLoop(LoopKind kind) {
    if (!turn_wanted.load(std::memory_order_relaxed)) return;
    MutexLock lock(turn_mu);
    const absl::Time now = MonotonicNow();
    order.End(kind, now);
    if (!order.Pass(now)) return;
    ShowTurn();
    turn_cv.NotifyAll();
  }

  void ShowTurn() RUNAHEAD_REQUIRES(turn_mu) {
    turn.store(static_cast<int>(*order.turn()), std::memory_order_seq_cst);
    turn_wanted.store(order.waiting(), std::memory_order_relaxed);
  }
};

void SetLoopKind(LoopKind kind) {
  this_threads_kind = kind;
}

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
      NameThread("pool");
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
  const LoopKind kind = this_threads_kind;
  const int index = static_cast<int>(kind);
  MutexLock lock(impl.loop_mu[index]);
  Loop& loop = impl.loops[index];
  loop.Begin(count, body);
  impl.Begin(kind);
  while (true) {
    while (impl.turn.load(std::memory_order_relaxed) == index && impl.RunItem(index)) {
    }
    if (!loop.HasItems()) break;
    impl.AwaitTurn(kind);
  }
  impl.AwaitItems(loop);
  impl.EndLoop(kind);
}

}  // namespace runahead
