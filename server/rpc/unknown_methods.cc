#include "server/rpc/unknown_methods.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "server/base/printable.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

class UnknownCall final : public grpc::ServerGenericBidiReactor {
 public:
  explicit UnknownCall(const absl::Status& why) { Finish(ToGrpcStatus(why)); }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerGenericBidiReactor* UnknownMethods::CreateReactor(grpc::GenericCallbackServerContext* context) {
  return new UnknownCall(absl::UnimplementedError(WordsFor(context->method())));
}

std::string UnknownMethods::WordsFor(const std::string& method) const {
  const std::string path(absl::StripPrefix(method, "/"));
  const std::string service = path.substr(0, path.find('/'));
  const auto* const type = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(service);
  const bool offered = std::find(names_.begin(), names_.end(), service) != names_.end();
  if (type == nullptr || !offered) {
    return absl::StrCat("this server has no method ", Printable(method), "; its services are ",
                        absl::StrJoin(names_, ", "), "; ask its reflection for their methods");
  }
  std::vector<std::string> methods;
  for (int i = 0; i < type->method_count(); ++i) methods.push_back(type->method(i)->name());
  const std::string name = path.substr(std::min(path.size(), service.size() + 1));
  return absl::StrCat(service, " has no method ", Printable(name), "; it has ", absl::StrJoin(methods, ", "));
}

}  // namespace runahead
