#include "client/base/api_key.h"

#include <grpcpp/support/client_interceptor.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/base/parse.h"

namespace runahead {
namespace {

using grpc::experimental::ClientInterceptorFactoryInterface;
using grpc::experimental::ClientRpcInfo;
using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;

// Of one call.
class KeySender final : public Interceptor {
 public:
  explicit KeySender(std::string value) : value_(std::move(value)) {}
  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace("authorization", value_);
    }
    methods->Proceed();
  }

 private:
  const std::string value_;
};

class KeySenderFactory final : public ClientInterceptorFactoryInterface {
 public:
  explicit KeySenderFactory(const std::string& key) : value_(absl::StrCat("Bearer ", key)) {}
  Interceptor* CreateClientInterceptor(ClientRpcInfo*) override { return new KeySender(value_); }

 private:
  const std::string value_;
};

}  // namespace

void AddApiKey(CLI::App& app, std::string* key) {
  app.add_option(
         "--api-key", *key,
         "The router's API key for you, where it asks for one; better in the environment, for others on this host "
         "see command lines")
      ->envname("RUNAHEAD_API_KEY")
      ->type_name("KEY");
}

absl::Status CheckApiKey(const std::string& key) {
  constexpr size_t kMostBytes = 1024;  // far above any key; all metadata of a call has room for 8 KiB
  const bool printable = std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (printable && key.size() <= kMostBytes) return absl::OkStatus();
  return WrongFlag("--api-key (or RUNAHEAD_API_KEY): is no key; allowed: up to ", kMostBytes,
                   " printable ASCII characters without spaces");
}

Interceptors BringApiKey(const std::string& key) {
  Interceptors interceptors;
  if (!key.empty()) interceptors.push_back(std::make_unique<KeySenderFactory>(key));
  return interceptors;
}

}  // namespace runahead
