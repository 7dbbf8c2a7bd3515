#include "server/rpc/unfold_message.h"

#include <grpcpp/support/proto_buffer_reader.h>
#include <zlib.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/rpc/take_memory.h"

namespace runahead {
namespace {

// So much is unfolded at once.
constexpr size_t kPart = size_t{64} << 10;

// A message as it came. ByteBuffer does not say by what it is folded; gRPC's readers know.
class FoldedMessage final : public grpc::ProtoBufferReader {
 public:
  using ProtoBufferReader::ProtoBufferReader;
  grpc_compression_algorithm algorithm() { return reader()->buffer_in->data.raw.compression; }
};

class Inflater {
 public:
  explicit Inflater(grpc_compression_algorithm algorithm) {
    RUNAHEAD_CHECK(inflateInit2(&stream, algorithm == GRPC_COMPRESS_GZIP ? MAX_WBITS + 16 : MAX_WBITS) == Z_OK);
  }
  ~Inflater() { inflateEnd(&stream); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  z_stream stream = {};
};

absl::Status TooLong(int64_t longest) {
  return absl::ResourceExhaustedError(absl::StrCat("the message has more than the ", longest,
                                                   " bytes that it may have here, once it is unfolded; send a shorter "
                                                   "one"));
}

}  // namespace

absl::Status UnfoldMessage(grpc::ByteBuffer& message, int64_t longest, ByteBudget::Lease& memory) {
  if (!message.Valid()) return absl::OkStatus();
  std::vector<grpc::Slice> whole;
  {
    FoldedMessage folded(&message);
    if (folded.algorithm() == GRPC_COMPRESS_NONE) return absl::OkStatus();
    Inflater inflater(folded.algorithm());
    z_stream& stream = inflater.stream;
    std::vector<Bytef> part(kPart);
    int64_t length = 0;
    int state = Z_OK;
    const void* data = nullptr;
    int size = 0;
    while (state == Z_OK && folded.Next(&data, &size)) {
      stream.next_in = static_cast<Bytef*>(const_cast<void*>(data));
      stream.avail_in = static_cast<uInt>(size);
      do {
        stream.next_out = part.data();
        stream.avail_out = static_cast<uInt>(part.size());
        state = inflate(&stream, Z_NO_FLUSH);
        if (state == Z_BUF_ERROR) state = Z_OK;  // it waits for what comes next
        const size_t made = part.size() - stream.avail_out;
        length += static_cast<int64_t>(made);
        if (length > longest) return TooLong(longest);
        RUNAHEAD_RETURN_IF_ERROR(TakeMemory(memory, memory.bytes() + static_cast<int64_t>(made)));
        if (made > 0) whole.emplace_back(part.data(), made);
      } while (state == Z_OK && stream.avail_out == 0);
    }
    if (state != Z_STREAM_END || stream.avail_in > 0 || folded.Next(&data, &size)) {
      return absl::InvalidArgumentError(absl::StrCat("the ", message.Length(),
                                                     " bytes of the message cannot be unfolded: they are not what "
                                                     "grpc-encoding says"));
    }
  }
  message = grpc::ByteBuffer(whole.data(), whole.size());
  return absl::OkStatus();
}

}  // namespace runahead
