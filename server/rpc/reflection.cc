#include "server/rpc/reflection.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "server/rpc/message_service.h"

namespace runahead {
namespace {

namespace reflection = grpc::reflection::v1;
namespace older = grpc::reflection::v1alpha;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;

// The file, then all that it needs, each once.
void AddFiles(const FileDescriptor& file, std::set<const FileDescriptor*>& added,
              reflection::FileDescriptorResponse& response) {
  if (!added.insert(&file).second) return;
  google::protobuf::FileDescriptorProto proto;
  file.CopyTo(&proto);
  response.add_file_descriptor_proto(proto.SerializeAsString());
  for (int i = 0; i < file.dependency_count(); ++i) AddFiles(*file.dependency(i), added, response);
}

void SetError(grpc::StatusCode code, std::string message, reflection::ServerReflectionResponse& response) {
  response.mutable_error_response()->set_error_code(code);
  response.mutable_error_response()->set_error_message(std::move(message));
}

// `file` is null where there is no `what`.
void SetFile(const FileDescriptor* file, const std::string& what, reflection::ServerReflectionResponse& response) {
  if (file == nullptr) return SetError(grpc::StatusCode::NOT_FOUND, absl::StrCat("there is no ", what), response);
  std::set<const FileDescriptor*> added;
  AddFiles(*file, added, *response.mutable_file_descriptor_response());
}

const FileDescriptor* FileOfExtension(const reflection::ExtensionRequest& asked) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  const google::protobuf::Descriptor* const type = pool.FindMessageTypeByName(asked.containing_type());
  if (type == nullptr) return nullptr;
  const FieldDescriptor* const field = pool.FindExtensionByNumber(type, asked.extension_number());
  return field == nullptr ? nullptr : field->file();
}

void SetExtensions(const std::string& type_name, reflection::ServerReflectionResponse& response) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  const google::protobuf::Descriptor* const type = pool.FindMessageTypeByName(type_name);
  if (type == nullptr) {
    return SetError(grpc::StatusCode::NOT_FOUND, absl::StrCat("there is no message ", type_name), response);
  }
  std::vector<const FieldDescriptor*> extensions;
  pool.FindAllExtensions(type, &extensions);
  reflection::ExtensionNumberResponse& found = *response.mutable_all_extension_numbers_response();
  found.set_base_type_name(type_name);
  for (const FieldDescriptor* const extension : extensions) found.add_extension_number(extension->number());
}

reflection::ServerReflectionResponse Answer(const reflection::ServerReflectionRequest& request,
                                            const std::vector<std::string>& services) {
  using Request = reflection::ServerReflectionRequest;
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  reflection::ServerReflectionResponse response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case Request::kFileByFilename:
      SetFile(pool.FindFileByName(request.file_by_filename()), absl::StrCat("file ", request.file_by_filename()),
              response);
      break;
    case Request::kFileContainingSymbol:
      SetFile(pool.FindFileContainingSymbol(request.file_containing_symbol()), request.file_containing_symbol(),
              response);
      break;
    case Request::kFileContainingExtension:
      SetFile(FileOfExtension(request.file_containing_extension()), "such extension", response);
      break;
    case Request::kAllExtensionNumbersOfType:
      SetExtensions(request.all_extension_numbers_of_type(), response);
      break;
    case Request::kListServices:
      for (const std::string& name : services) response.mutable_list_services_response()->add_service()->set_name(name);
      break;
    case Request::MESSAGE_REQUEST_NOT_SET:
      SetError(grpc::StatusCode::INVALID_ARGUMENT, "message_request: one of its questions must be asked", response);
  }
  return response;
}

// Both names have the same messages, on the wire as well.
template <typename To, typename From>
To As(const From& message) {
  if constexpr (std::is_same_v<To, From>) {
    return message;
  } else {
    To same;
    same.ParseFromString(message.SerializeAsString());
    return same;
  }
}

// One thing is under way at a time, a read or a write.
template <typename Request, typename Response>
class Questions final : public grpc::ServerBidiReactor<Request, Response> {
 public:
  explicit Questions(const std::vector<std::string>& services) : services_(services) { this->StartRead(&request_); }
  void OnReadDone(bool ok) override {
    if (!ok) return this->Finish(grpc::Status::OK);
    response_ = As<Response>(Answer(As<reflection::ServerReflectionRequest>(request_), services_));
    this->StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return this->Finish(grpc::Status::OK);
    this->StartRead(&request_);
  }
  void OnDone() override { delete this; }

 private:
  const std::vector<std::string>& services_;
  Request request_;
  Response response_;
};

template <typename Reflected, typename Request, typename Response>
class ReflectionService final : public MessageService<Reflected> {
 public:
  ReflectionService(const CallDoor& door, const std::vector<std::string>& names)
      : MessageService<Reflected>(door), names_(names) {
    this->Bidi("ServerReflectionInfo", &ReflectionService::ServerReflectionInfo);
  }
  grpc::ServerBidiReactor<Request, Response>* ServerReflectionInfo(grpc::CallbackServerContext*) override {
    return new Questions<Request, Response>(names_);
  }

 private:
  const std::vector<std::string>& names_;
};

}  // namespace

struct Reflection::Services {
  explicit Services(const CallDoor& door) : latest(door, names), oldest(door, names) {}

  std::vector<std::string> names;
  ReflectionService<reflection::ServerReflection, reflection::ServerReflectionRequest,
                    reflection::ServerReflectionResponse>
      latest;
  ReflectionService<older::ServerReflection, older::ServerReflectionRequest, older::ServerReflectionResponse> oldest;
};

Reflection::Reflection(const CallDoor& door) : services_(std::make_unique<Services>(door)) {}
Reflection::~Reflection() = default;

std::vector<grpc::Service*> Reflection::services() {
  return {&services_->latest, &services_->oldest};
}

void Reflection::SetNames(std::vector<std::string> names) {
  services_->names = std::move(names);
}

}  // namespace runahead
