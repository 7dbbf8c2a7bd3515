// Which memory lies on which side of the CPU device's emulated link, and that ops stay on the device's side: on a GPU
// what the host has must be copied first, and so it must where a GPU is emulated.
#pragma once

#include <initializer_list>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/base/buffer.h"
#include "kernels/base/device.h"
#include "kernels/base/tensor.h"

namespace runahead {

// An argument of an op, under the name that it has in kernels/base/device.h. Refers to it, for the time of a call.
struct OpArgument {
  OpArgument(std::string_view name, const Tensor& tensor) : name(name), ref(tensor.ref) {}
  OpArgument(std::string_view name, const BufferRef& ref) : name(name), ref(ref) {}
  const std::string_view name;
  const BufferRef& ref;
};

// Of one device, which tells it all memory that it allocates. Any thread. Buffers must not outlive it.
class LinkGuard {
 public:
  explicit LinkGuard(bool has_link) : has_link_(has_link) {}
  LinkGuard(const LinkGuard&) = delete;
  LinkGuard& operator=(const LinkGuard&) = delete;

  // `memory`, held as memory of this device of that kind.
  std::shared_ptr<Buffer> Mark(std::shared_ptr<Buffer> memory, MemoryKind kind) const;
  // Memory that is not of this device (a mapped file, another device's, a test's) counts as the host's.
  MemoryKind KindOf(const BufferRef& ref) const;
  // FAILED_PRECONDITION, naming op and argument, for one in memory that is not kDevice. Arguments without memory are
  // absent. Without a link everything goes.
  absl::Status Check(std::string_view op, std::initializer_list<OpArgument> arguments) const;

 private:
  const bool has_link_;
};

}  // namespace runahead
