#include "server/rpc/parse_message.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/unknown_field_set.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

using MessageType = google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

std::string NameOf(const FieldDescriptor& field, int index) {
  return field.is_repeated() ? absl::StrCat(field.name(), "[", index, "]") : field.name();
}

// The path of the first text in a message of `type` that is no UTF-8; nothing where there is none, or where the bytes
// are no message before one comes. Keeps one text in memory at a time.
std::optional<std::string> FindBadText(CodedInputStream& in, const MessageType& type) {
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

// What malloc and a list's growth add to each part.
constexpr int64_t kPerPart = 48;
// A number of a list (ours are int32) takes four bytes, twice that where the list has room for more, and four while it
// grows. On the wire it takes at least one.
constexpr int64_t kPerWireByte = 12;

// Adds up what the parts of a message of `type` take. Stops where the bytes are no message: there parsing stops, too.
class PartCounter {
 public:
  // Of a whole message; again for those in it.
  void Count(CodedInputStream& in, const MessageType& type) {
    bytes_ += kPerPart + SizeOf(type);
    CountFields(in, &type);
  }
  int64_t bytes() const { return bytes_; }

 private:
  // Up to the end of a message of `type`, or of a group, for which it is null: ours have none, so each is kept as it
  // came, with all that is in it. False: there parsing stops.
  bool CountFields(CodedInputStream& in, const MessageType* type) {
    while (const uint32_t tag = in.ReadTag()) {
      const WireFormatLite::WireType wire = WireFormatLite::GetTagWireType(tag);
      if (wire == WireFormatLite::WIRETYPE_END_GROUP) return type == nullptr;
      const int number = WireFormatLite::GetTagFieldNumber(tag);
      const FieldDescriptor* const field = type == nullptr ? nullptr : type->FindFieldByNumber(number);
      if (wire == WireFormatLite::WIRETYPE_START_GROUP) {
        bytes_ += kPerPart + static_cast<int64_t>(sizeof(google::protobuf::UnknownFieldSet));
        if (!in.IncrementRecursionDepth() || !CountFields(in, nullptr)) return false;
        in.DecrementRecursionDepth();
      } else if (wire != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
        bytes_ += kPerPart;
        if (!WireFormatLite::SkipField(&in, tag)) return false;
      } else if (!CountBytes(in, field)) {
        return false;
      }
    }
    return true;
  }

  // What comes behind its length: a message, a text, or numbers of a list. `field` is null where it is not known.
  bool CountBytes(CodedInputStream& in, const FieldDescriptor* field) {
    int length = 0;
    if (!in.ReadVarintSizeAsInt(&length)) return false;
    if (field != nullptr && field->type() == FieldDescriptor::TYPE_MESSAGE) {
      const auto [limit, depth_left] = in.IncrementRecursionDepthAndPushLimit(length);
      if (depth_left < 0) return false;
      Count(in, *field->message_type());
      return in.DecrementRecursionDepthAndPopLimit(limit);
    }
    const bool text = field == nullptr || !field->is_packable();
    bytes_ += text ? kPerPart + static_cast<int64_t>(sizeof(std::string)) + length : kPerWireByte * length;
    return in.Skip(length);
  }

  int64_t SizeOf(const MessageType& type) {
    int64_t& size = sizes_[&type];
    if (size == 0) {
      size = static_cast<int64_t>(
          google::protobuf::MessageFactory::generated_factory()->GetPrototype(&type)->SpaceUsedLong());
    }
    return size;
  }

  absl::flat_hash_map<const MessageType*, int64_t> sizes_;  // of empty messages
  int64_t bytes_ = 0;
};

}  // namespace

int64_t ParsedBytes(grpc::ByteBuffer& bytes, const MessageType& type) {
  grpc::ProtoBufferReader reader(&bytes);
  CodedInputStream in(&reader);
  PartCounter counter;
  counter.Count(in, type);
  return counter.bytes();
}

absl::Status CheckLength(const grpc::ByteBuffer& bytes, int64_t longest) {
  const auto length = static_cast<int64_t>(bytes.Length());
  if (length <= longest) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the message has ", length, " bytes; here it may have ", longest, "; send a shorter one"));
}

absl::Status ParseMessage(grpc::ByteBuffer& bytes, google::protobuf::Message& message) {
  {
    grpc::ProtoBufferReader reader(&bytes);
    if (message.ParseFromZeroCopyStream(&reader) && reader.status().ok()) return absl::OkStatus();
  }
  message.Clear();
  grpc::ProtoBufferReader reader(&bytes);
  CodedInputStream in(&reader);
  const MessageType& type = *message.GetDescriptor();
  if (const std::optional<std::string> field = FindBadText(in, type)) {
    return InvalidField(*field, "it is not UTF-8; text must be");
  }
  return absl::InvalidArgumentError(absl::StrCat("the ", bytes.Length(), " bytes of the request are no ",
                                                 type.full_name(),
                                                 "; does the client have this service's proto file?"));
}

grpc::Status SerializeMessage(const google::protobuf::Message& message, grpc::ByteBuffer& bytes) {
  bool own_buffer = false;
  return grpc::SerializationTraits<google::protobuf::Message>::Serialize(message, &bytes, &own_buffer);
}

}  // namespace runahead
