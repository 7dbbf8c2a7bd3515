#include "tests/testing/cuda_emulation/fiber.h"

#include <sys/mman.h>

#include "tests/testing/cuda_emulation/runtime.h"

#if defined(__SANITIZE_ADDRESS__)
#define RUNAHEAD_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RUNAHEAD_ASAN 1
#endif
#endif
#ifdef RUNAHEAD_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace runahead::cuda_emulation {
namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr size_t kGuardBytes = 4 << 10;  // below the stack, never mapped: an overflow is a crash

}  // namespace

// SwitchStack stores where this side goes on in *from and goes on at `to`. By hand where we can, for swapcontext makes
// two system calls: a kernel that synchronises would take twenty times as long.
#ifdef __x86_64__
extern "C" void runahead_switch_stack(void** from, void* to);
extern "C" void runahead_start_fiber();
asm(R"(
.text
.type runahead_switch_stack,@function
runahead_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size runahead_switch_stack, .-runahead_switch_stack
.type runahead_start_fiber,@function
runahead_start_fiber:
  movq %r12, %rdi
  jmp *%r13
.size runahead_start_fiber, .-runahead_start_fiber
)");

static void SwitchStack(void** from, void* to) {
  runahead_switch_stack(from, to);
}

static void* PrepareStack(std::byte* stack, void (*entry)(Fiber*), Fiber* fiber) {
  // As runahead_switch_stack leaves a stack: r15, r14, r13, r12, rbx, rbp, where to return to; above it the return
  // address of `entry`, which has none.
  void** top = reinterpret_cast<void**>(stack + kStackBytes);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&runahead_start_fiber);
  *--top = nullptr;
  *--top = nullptr;
  *--top = fiber;
  *--top = reinterpret_cast<void*>(entry);
  *--top = nullptr;
  *--top = nullptr;
  return top;
}
#else
static void SwitchStack(void** from, void* to) {
  ucontext_t here;
  *from = &here;
  swapcontext(&here, static_cast<ucontext_t*>(to));
}

static void EnterFiber(unsigned entry_high, unsigned entry_low, unsigned fiber_high, unsigned fiber_low) {
  const auto entry = reinterpret_cast<void (*)(Fiber*)>(static_cast<uintptr_t>(entry_high) << 32 | entry_low);
  entry(reinterpret_cast<Fiber*>(static_cast<uintptr_t>(fiber_high) << 32 | fiber_low));
}

static void* PrepareStack(std::byte* stack, void (*entry)(Fiber*), Fiber* fiber) {
  auto* context = reinterpret_cast<ucontext_t*>(stack);
  constexpr size_t kContextBytes = (sizeof(ucontext_t) + 63) / 64 * 64;
  getcontext(context);
  context->uc_stack.ss_sp = stack + kContextBytes;
  context->uc_stack.ss_size = kStackBytes - kContextBytes;
  const auto function = reinterpret_cast<uintptr_t>(entry);
  const auto argument = reinterpret_cast<uintptr_t>(fiber);
  makecontext(context, reinterpret_cast<void (*)()>(&EnterFiber), 4, static_cast<unsigned>(function >> 32),
              static_cast<unsigned>(function), static_cast<unsigned>(argument >> 32), static_cast<unsigned>(argument));
  return context;
}
#endif

Fiber::Fiber() {
  void* memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) Die("no memory for the stack of a fiber");
  stack_ = static_cast<std::byte*>(memory) + kGuardBytes;
  if (mprotect(memory, kGuardBytes, PROT_NONE) != 0) Die("mprotect failed");
  inside_ = PrepareStack(stack_, &Fiber::Main, this);
}

Fiber::~Fiber() {
#ifdef RUNAHEAD_ASAN
  ASAN_UNPOISON_MEMORY_REGION(stack_, kStackBytes);  // frames that are never left
#endif
  munmap(stack_ - kGuardBytes, kGuardBytes + kStackBytes);
}

bool Fiber::Start(void (*work)(void*), void* argument) {
  work_ = work;
  argument_ = argument;
  idle_ = false;
  return Resume();
}

bool Fiber::Resume() {
#ifdef RUNAHEAD_ASAN
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, stack_, kStackBytes);
#endif
  SwitchStack(&outside_, inside_);
#ifdef RUNAHEAD_ASAN
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  return idle_;
}

void Fiber::Suspend() {
#ifdef RUNAHEAD_ASAN
  __sanitizer_start_switch_fiber(&inside_fake_stack_, outside_stack_, outside_stack_size_);
#endif
  SwitchStack(&inside_, outside_);
#ifdef RUNAHEAD_ASAN
  __sanitizer_finish_switch_fiber(inside_fake_stack_, &outside_stack_, &outside_stack_size_);
#endif
}

void Fiber::Main(Fiber* self) {
#ifdef RUNAHEAD_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &self->outside_stack_, &self->outside_stack_size_);
#endif
  while (true) {
    self->work_(self->argument_);
    self->idle_ = true;
    self->Suspend();
  }
}

}  // namespace runahead::cuda_emulation
