#include "tests/testing/cuda_emulation/block.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <memory>

#include "tests/testing/cuda_emulation/runtime.h"
#include "tests/testing/cuda_emulation/shared_memory.h"

constinit thread_local uint3 threadIdx = {};
constinit thread_local uint3 blockIdx = {};
constinit thread_local dim3 blockDim = {};
constinit thread_local dim3 gridDim = {};

namespace runahead::cuda_emulation {
namespace {

constexpr int kWarp = 32;
thread_local BlockRunner* current_block = nullptr;
// Of this thread: shared among threads they would make tsan see an order between streams that is none.
thread_local std::vector<std::unique_ptr<Fiber>> own_fibers;
thread_local std::vector<Fiber*> idle_fibers;

Fiber* TakeFiber() {
  if (idle_fibers.empty()) {
    own_fibers.push_back(std::make_unique<Fiber>());
    idle_fibers.push_back(own_fibers.back().get());
  }
  Fiber* fiber = idle_fibers.back();
  idle_fibers.pop_back();
  return fiber;
}

}  // namespace

BlockRunner::BlockRunner(dim3 grid, dim3 block, uint64_t launch, const std::function<void()>& thread)
    : count_(static_cast<int>(block.x * block.y * block.z)),
      launch_(launch),
      thread_(thread),
      threads_(count_),
      brought_(count_),
      met_(count_) {
  current_block = this;
  gridDim = grid;
  blockDim = block;
  indices_.reserve(count_);
  for (unsigned z = 0; z < block.z; ++z) {
    for (unsigned y = 0; y < block.y; ++y) {
      for (unsigned x = 0; x < block.x; ++x) indices_.push_back({x, y, z});
    }
  }
}

BlockRunner::~BlockRunner() {
  current_block = nullptr;
}

void BlockRunner::Run(uint3 index) {
  blockIdx = index;
  turn_ = launch_ + index.x + index.y + index.z;
  descending_ = turn_ % 2 == 1;
  threads_.assign(count_, Thread());
  fresh_ = 0;
  running_ = count_;
  while (fresh_ < count_) {
    fiber_ = TakeFiber();
    if (fiber_->Start(&BlockRunner::RunFresh, this)) idle_fibers.push_back(fiber_);
  }
  while (running_ > 0) {
    Release();
    descending_ = ++turn_ % 2 == 1;
    for (int position = 0; position < count_; ++position) {
      const int thread = InOrder(position);
      if (threads_[thread].state != State::kReady) continue;
      Enter(thread);
      fiber_ = threads_[thread].fiber;
      if (fiber_->Resume()) idle_fibers.push_back(fiber_);
    }
  }
}

// Threads that have not begun, on the fiber that Run chose: as many as end without waiting, and one that waits.
void BlockRunner::RunFresh(void* self) {
  auto& block = *static_cast<BlockRunner*>(self);
  while (block.fresh_ < block.count_) {
    const int thread = block.InOrder(block.fresh_++);
    block.threads_[thread].fiber = block.fiber_;
    block.Enter(thread);
    block.thread_();
    block.threads_[thread].state = State::kDone;
    --block.running_;
  }
}

void BlockRunner::Enter(int thread) {
  current_ = thread;
  threadIdx = indices_[thread];
}

BlockRunner& BlockRunner::Current(const char* function) {
  if (current_block == nullptr) Die("%s outside a kernel", function);
  return *current_block;
}

void BlockRunner::Wait(State state) {
  threads_[current_].state = state;
  fiber_->Suspend();
}

void BlockRunner::SyncThreads() {
  Wait(State::kAtBarrier);
}

WarpValues BlockRunner::Meet(WarpOp op, uint32_t mask, uint64_t value) {
  const int lane = current_ % kWarp;
  if ((mask >> lane & 1) == 0) Die("lane %d calls a warp function with a mask (%08x) that lacks it", lane, mask);
  Thread& thread = threads_[current_];
  thread.op = op;
  thread.mask = mask;
  brought_[current_] = value;
  Wait(State::kInWarp);
  return {&met_[current_ - lane], thread.participants, lane};
}

void BlockRunner::Release() {
  bool any = false;
  for (int first = 0; first < count_; first += kWarp) any |= ReleaseWarp(first);
  if (!any && !ReleaseBarrier()) DieStuck();
}

// Threads that have ended count as arrived.
bool BlockRunner::ReleaseBarrier() {
  for (const Thread& thread : threads_) {
    if (thread.state == State::kInWarp) return false;
  }
  for (Thread& thread : threads_) {
    if (thread.state == State::kAtBarrier) thread.state = State::kReady;
  }
  return true;
}

// Lets those lanes of the warp of thread `first` go on whose whole mask has come or ended.
bool BlockRunner::ReleaseWarp(int first) {
  const int lanes = std::min(kWarp, count_ - first);
  uint32_t waiting = 0;
  uint32_t away = lanes == kWarp ? 0 : ~0u << lanes;
  for (int lane = 0; lane < lanes; ++lane) {
    if (threads_[first + lane].state == State::kInWarp) waiting |= 1u << lane;
    if (threads_[first + lane].state == State::kDone) away |= 1u << lane;
  }
  bool any = false;
  while (waiting != 0) {
    const Thread& leader = threads_[first + std::countr_zero(waiting)];
    uint32_t group = 0;
    for (int lane = 0; lane < lanes; ++lane) {
      if ((waiting >> lane & 1) != 0 && threads_[first + lane].mask == leader.mask) group |= 1u << lane;
    }
    waiting &= ~group;
    if ((leader.mask & ~(group | away)) != 0) continue;
    const WarpOp op = leader.op;
    for (int lane = 0; lane < lanes; ++lane) {
      if ((group >> lane & 1) == 0) continue;
      Thread& thread = threads_[first + lane];
      if (thread.op != op) Die("lanes of one warp meet in different warp functions (lane %d)", lane);
      thread.state = State::kReady;
      thread.participants = group;
      met_[first + lane] = brought_[first + lane];
    }
    any = true;
  }
  return any;
}

void BlockRunner::DieStuck() const {
  int at_barrier = 0;
  int in_warp = 0;
  for (const Thread& thread : threads_) {
    at_barrier += thread.state == State::kAtBarrier;
    in_warp += thread.state == State::kInWarp;
  }
  Die("block (%u, %u, %u) is stuck: %d threads at __syncthreads, %d in warp functions whose other lanes do not come",
      blockIdx.x, blockIdx.y, blockIdx.z, at_barrier, in_warp);
}

WarpValues Meet(WarpOp op, uint32_t mask, uint64_t value) {
  return BlockRunner::Current("a warp function").Meet(op, mask, value);
}

uint64_t ValueOf(const WarpValues& values, int lane) {
  if ((values.participants >> lane & 1) == 0) {
    Die("lane %d shuffles with lane %d, which has ended, was never there or is not in the mask", values.lane, lane);
  }
  return values.of_lane[lane];
}

void RunGrid(dim3 grid, dim3 block, const void* kernel, const std::function<void()>& thread) {
  static std::atomic<uint64_t> launches = 0;
  constexpr int kSpoiled = 8;  // blocks of a launch that find garbage; the others what was left, which is cheaper
  BlockRunner runner(grid, block, launches.fetch_add(1, std::memory_order_relaxed), thread);
  const std::span<std::byte> shared = SharedMemoryOf(kernel);
  int spoiled = 0;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        if (spoiled++ < kSpoiled) std::fill(shared.begin(), shared.end(), std::byte{0xff});
        runner.Run({x, y, z});
      }
    }
  }
}

}  // namespace runahead::cuda_emulation

void __syncthreads() {
  runahead::cuda_emulation::BlockRunner::Current("__syncthreads").SyncThreads();
}

unsigned __ballot_sync(unsigned mask, int predicate) {
  using namespace runahead::cuda_emulation;
  const WarpValues values = Meet(WarpOp::kBallot, mask, predicate != 0);
  unsigned ballot = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if ((values.participants >> lane & 1) != 0 && values.of_lane[lane] != 0) ballot |= 1u << lane;
  }
  return ballot;
}
