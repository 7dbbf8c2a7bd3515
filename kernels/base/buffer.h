// Memory with one owner: a Buffer is held by shared references, a BufferRef is a byte range in it.
#pragma once

#include <cstddef>
#include <memory>

#include "kernels/base/status_macros.h"

namespace runahead {

// A block of memory on some device. The pointer is stable for life; memory is freed with the last reference.
// Contents are uninitialised. Reading and writing are ordered by streams and events, not by the buffer.
class Buffer {
 public:
  virtual ~Buffer() = default;
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 protected:
  Buffer(std::byte* data, size_t size) : data_(data), size_(size) {}
  std::byte* data_;
  size_t size_;
};

// `size` bytes of `buffer` from `offset`; keeps the buffer alive. Copies are cheap.
struct BufferRef {
  std::shared_ptr<Buffer> buffer;
  size_t offset = 0;
  size_t size = 0;

  static BufferRef Whole(std::shared_ptr<Buffer> buffer) {
    const size_t size = buffer->size();
    return {std::move(buffer), 0, size};
  }
  std::byte* data() const { return buffer->data() + offset; }
  BufferRef Slice(size_t from, size_t bytes) const {
    RUNAHEAD_CHECK(from + bytes <= size);
    return {buffer, offset + from, bytes};
  }
};

// A range that the holder only reads. The same type: constness here is a word to the reader.
using ConstBufferRef = BufferRef;

}  // namespace runahead
