#include "server/rpc/unfold_message.h"

#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <zlib.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

// What gRPC's own tests put a buffer of the core into a ByteBuffer with; their library is not installed.
namespace grpc::internal {
class GrpcByteBufferPeer {
 public:
  static void Set(ByteBuffer& buffer, grpc_byte_buffer* of_core) { buffer.set_buffer(of_core); }
};
}  // namespace grpc::internal

namespace runahead {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

std::string Fold(grpc_compression_algorithm algorithm, const std::string& part, int times) {
  z_stream stream = {};
  const int window = algorithm == GRPC_COMPRESS_GZIP ? MAX_WBITS + 16 : MAX_WBITS;
  EXPECT_EQ(deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, window, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string folded;
  std::string room(size_t{64} << 10, '\0');
  for (int i = 0; i < times; ++i) {
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(part.data()));
    stream.avail_in = static_cast<uInt>(part.size());
    do {
      stream.next_out = reinterpret_cast<Bytef*>(room.data());
      stream.avail_out = static_cast<uInt>(room.size());
      deflate(&stream, i + 1 < times ? Z_NO_FLUSH : Z_FINISH);
      folded.append(room, 0, room.size() - stream.avail_out);
    } while (stream.avail_out == 0);
  }
  deflateEnd(&stream);
  return folded;
}

// As it comes from the core, in pieces of so many bytes.
grpc::ByteBuffer AsItCame(grpc_compression_algorithm algorithm, const std::string& bytes, size_t piece) {
  std::vector<grpc_slice> slices;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    slices.push_back(grpc_slice_from_copied_buffer(bytes.data() + at, std::min(piece, bytes.size() - at)));
  }
  grpc::ByteBuffer buffer;
  grpc::internal::GrpcByteBufferPeer::Set(
      buffer, grpc_raw_compressed_byte_buffer_create(slices.data(), slices.size(), algorithm));
  for (const grpc_slice& slice : slices) grpc_slice_unref(slice);
  return buffer;
}

std::string TextOf(const grpc::ByteBuffer& buffer) {
  grpc::Slice slice;
  EXPECT_TRUE(buffer.DumpToSingleSlice(&slice).ok());
  return {slice.begin(), slice.end()};
}

class UnfoldMessageOf : public ::testing::TestWithParam<std::tuple<grpc_compression_algorithm, size_t>> {
 protected:
  grpc_compression_algorithm algorithm() const { return std::get<0>(GetParam()); }
  grpc::ByteBuffer Folded(const std::string& part, int times) const {
    return AsItCame(algorithm(), Fold(algorithm(), part, times), std::get<1>(GetParam()));
  }
  ByteBudget budget_{64 * kMiB};
  ByteBudget::Lease memory_ = budget_.None();
};

TEST_P(UnfoldMessageOf, GivesWhatWasFoldedAndCountsIt) {
  for (const int words : {0, 1, 50'000}) {
    std::string text;
    for (int i = 0; i < words; ++i) text += std::to_string(i * 7919) + " ";
    grpc::ByteBuffer message = Folded(text, 1);
    memory_ = budget_.None();
    ASSERT_TRUE(UnfoldMessage(message, kMiB, memory_).ok());
    EXPECT_EQ(TextOf(message), text);
    EXPECT_EQ(memory_.bytes(), static_cast<int64_t>(text.size()));
  }
}

TEST_P(UnfoldMessageOf, TakesAsMuchAsMayBeAndNoMore) {
  grpc::ByteBuffer most = Folded(std::string(kMiB, 'a'), 2);
  EXPECT_TRUE(UnfoldMessage(most, 2 * kMiB, memory_).ok());
  memory_ = budget_.None();
  grpc::ByteBuffer bomb = Folded(std::string(kMiB, 'a'), 64);
  EXPECT_LT(bomb.Length(), static_cast<size_t>(kMiB));
  const absl::Status status = UnfoldMessage(bomb, 2 * kMiB, memory_);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("more than the 2097152 bytes"));
  EXPECT_LE(memory_.bytes(), 2 * kMiB);
}

TEST_P(UnfoldMessageOf, TakesNoMoreMemoryThanIsLeft) {
  ByteBudget::Lease others = budget_.None();
  ASSERT_TRUE(others.Resize(63 * kMiB));
  grpc::ByteBuffer message = Folded(std::string(kMiB, 'a'), 8);
  EXPECT_EQ(UnfoldMessage(message, 16 * kMiB, memory_).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_LE(memory_.bytes(), kMiB);
}

TEST_P(UnfoldMessageOf, SaysWhereTheBytesAreNotWhatTheyAreCalled) {
  const std::string whole = Fold(algorithm(), "some words of a text", 1);
  for (const std::string& bytes :
       {whole.substr(0, whole.size() - 1), whole + "x", whole + whole, std::string("words"), std::string()}) {
    grpc::ByteBuffer message = AsItCame(algorithm(), bytes, std::get<1>(GetParam()));
    const absl::Status status = UnfoldMessage(message, kMiB, memory_);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bytes.size();
    EXPECT_THAT(std::string(status.message()), HasSubstr("cannot be unfolded"));
  }
}

INSTANTIATE_TEST_SUITE_P(Algorithms, UnfoldMessageOf,
                         ::testing::Combine(::testing::Values(GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE),
                                            ::testing::Values(size_t{7}, size_t{1} << 20)));

TEST(UnfoldMessage, LeavesAMessageAsItIsThatIsNotFolded) {
  ByteBudget budget(0);
  ByteBudget::Lease memory = budget.None();
  grpc::ByteBuffer message = AsItCame(GRPC_COMPRESS_NONE, "some words", 3);
  EXPECT_TRUE(UnfoldMessage(message, 5, memory).ok());
  EXPECT_EQ(TextOf(message), "some words");
  grpc::ByteBuffer none;
  EXPECT_TRUE(UnfoldMessage(none, 5, memory).ok());
}

}  // namespace
}  // namespace runahead
