#include "worker/handoff/faults.h"

#include <cstring>
#include <memory>
#include <utility>

namespace runahead {
namespace {

class Copy final : public Buffer {
 public:
  explicit Copy(const ConstBufferRef& bytes) : Buffer(nullptr, bytes.size), owned_(new std::byte[bytes.size]) {
    data_ = owned_.get();
    std::memcpy(data_, bytes.data(), bytes.size);
  }

 private:
  const std::unique_ptr<std::byte[]> owned_;
};

}  // namespace

void HandoffFaults::CorruptSends(int count) {
  MutexLock lock(mu_);
  corrupt_ = count;
}

void HandoffFaults::HoldVerdicts() {
  MutexLock lock(mu_);
  holding_ = true;
}

void HandoffFaults::ReleaseVerdicts() {
  std::vector<std::function<void()>> answers;
  {
    MutexLock lock(mu_);
    holding_ = false;
    answers.swap(answers_);
  }
  for (const auto& answer : answers) answer();
}

void HandoffFaults::AwaitHeld(size_t count) {
  MutexLock lock(mu_);
  while (answers_.size() < count) held_.Wait(mu_);
}

ConstBufferRef HandoffFaults::Tamper(ConstBufferRef bytes) {
  {
    MutexLock lock(mu_);
    if (corrupt_ == 0 || bytes.size == 0) return bytes;
    --corrupt_;
  }
  BufferRef tampered = BufferRef::Whole(std::make_shared<Copy>(bytes));
  tampered.data()[bytes.size / 2] ^= std::byte{1};
  return tampered;
}

void HandoffFaults::Answer(std::function<void()> answer) {
  {
    MutexLock lock(mu_);
    if (holding_) {
      answers_.push_back(std::move(answer));
      held_.NotifyAll();
      return;
    }
  }
  answer();
}

}  // namespace runahead
