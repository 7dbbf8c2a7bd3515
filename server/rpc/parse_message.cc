#include "server/rpc/parse_message.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

std::string NameOf(const FieldDescriptor& field, int index) {
  return field.is_repeated() ? absl::StrCat(field.name(), "[", index, "]") : field.name();
}

// The path of the first text in a message of `type` that is no UTF-8; nothing where there is none, or where the bytes
// are no message before one comes. Keeps one text in memory at a time.
std::optional<std::string> FindBadText(CodedInputStream& in, const Descriptor& type) {
  absl::flat_hash_map<int, int> seen;  // how often a field came, by its number
  while (const uint32_t tag = in.ReadTag()) {
    const FieldDescriptor* const field = type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    const bool text = field != nullptr && field->type() == FieldDescriptor::TYPE_STRING;
    const bool message = field != nullptr && field->type() == FieldDescriptor::TYPE_MESSAGE;
    if ((!text && !message) || WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (!WireFormatLite::SkipField(&in, tag)) return std::nullopt;
      continue;
    }
    const std::string name = NameOf(*field, seen[field->number()]++);
    int length = 0;
    if (!in.ReadVarintSizeAsInt(&length)) return std::nullopt;
    if (text) {
      std::string value;
      if (!in.ReadString(&value, length)) return std::nullopt;
      const bool valid = google::protobuf::internal::IsStructurallyValidUTF8(value.data(), length);
      if (!valid) return name;
      continue;
    }
    const auto [limit, depth_left] = in.IncrementRecursionDepthAndPushLimit(length);
    if (depth_left < 0) return std::nullopt;
    const std::optional<std::string> inner = FindBadText(in, *field->message_type());
    if (inner) return absl::StrCat(name, ".", *inner);
    if (!in.DecrementRecursionDepthAndPopLimit(limit)) return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

absl::Status ParseMessage(grpc::ByteBuffer& bytes, google::protobuf::Message& message) {
  {
    grpc::ProtoBufferReader reader(&bytes);
    if (message.ParseFromZeroCopyStream(&reader) && reader.status().ok()) return absl::OkStatus();
  }
  message.Clear();
  grpc::ProtoBufferReader reader(&bytes);
  CodedInputStream in(&reader);
  const Descriptor& type = *message.GetDescriptor();
  if (const std::optional<std::string> field = FindBadText(in, type)) {
    return InvalidField(*field, "it is not UTF-8; text must be");
  }
  return absl::InvalidArgumentError(absl::StrCat("the ", bytes.Length(), " bytes of the request are no ",
                                                 type.full_name(),
                                                 "; does the client have this service's proto file?"));
}

}  // namespace runahead
