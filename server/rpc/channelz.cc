#include "server/rpc/channelz.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/channelz_service_plugin.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace runahead {
namespace {

class ChannelzOption final : public grpc::ServerBuilderOption {
 public:
  explicit ChannelzOption(bool on) : on_(on) {}
  void UpdateArguments(grpc::ChannelArguments* arguments) override {
    arguments->SetInt(GRPC_ARG_ENABLE_CHANNELZ, on_ ? 1 : 0);
  }
  // gRPC knows the plugin for all servers of the process, once one of them has asked for it.
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    if (on_) return;
    const auto channelz = [](const auto& plugin) { return plugin->name() == "channelz_service"; };
    plugins->erase(std::remove_if(plugins->begin(), plugins->end(), channelz), plugins->end());
  }

 private:
  const bool on_;
};

}  // namespace

std::unique_ptr<grpc::ServerBuilderOption> MakeChannelz(bool on) {
  static std::once_flag once;
  if (on) std::call_once(once, grpc::channelz::experimental::InitChannelzService);
  return std::make_unique<ChannelzOption>(on);
}

}  // namespace runahead
