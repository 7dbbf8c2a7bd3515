#include "kernels/cpu/link_guard.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

class KindBuffer final : public Buffer {
 public:
  KindBuffer(std::shared_ptr<Buffer> memory, const LinkGuard& owner, MemoryKind kind)
      : Buffer(memory->data(), memory->size()), owner(&owner), kind(kind), memory_(std::move(memory)) {}
  const LinkGuard* const owner;
  const MemoryKind kind;

 private:
  const std::shared_ptr<Buffer> memory_;
};

}  // namespace

std::shared_ptr<Buffer> LinkGuard::Mark(std::shared_ptr<Buffer> memory, MemoryKind kind) const {
  return std::make_shared<KindBuffer>(std::move(memory), *this, kind);
}

MemoryKind LinkGuard::KindOf(const BufferRef& ref) const {
  const auto* buffer = dynamic_cast<const KindBuffer*>(ref.buffer.get());
  return buffer == nullptr || buffer->owner != this ? MemoryKind::kHost : buffer->kind;
}

absl::Status LinkGuard::Check(std::string_view op, std::initializer_list<OpArgument> arguments) const {
  if (!has_link_) return absl::OkStatus();
  for (const OpArgument& argument : arguments) {
    if (argument.ref.buffer == nullptr || KindOf(argument.ref) == MemoryKind::kDevice) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(std::string(op), ": ", std::string(argument.name),
                     " is not in the memory of this device, which is behind an emulated link: copy it there first"));
  }
  return absl::OkStatus();
}

}  // namespace runahead
