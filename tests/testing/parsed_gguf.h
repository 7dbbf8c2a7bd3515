// A GGUF file that was never on a disk.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "worker/format/gguf.h"

namespace runahead {

// Of GgufBuilder::Build(), or other bytes; messages call it test.gguf.
inline absl::StatusOr<std::shared_ptr<const ModelFile>> ParseGguf(std::string bytes) {
  const auto owner = std::make_shared<const std::string>(std::move(bytes));
  return ParseGguf("test.gguf", {reinterpret_cast<const std::byte*>(owner->data()), owner->size()}, owner);
}

}  // namespace runahead
