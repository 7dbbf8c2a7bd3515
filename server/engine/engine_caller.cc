#include "server/engine/engine_caller.h"

#include "server/base/trace_context.h"
#include "server/rpc/tenant_key.h"

namespace runahead {
namespace {

// All values, so that a key that is there twice is refused as it would be without us.
void Take(const grpc::CallbackServerContext& context, const char* key,
          std::vector<std::pair<std::string, std::string>>& out) {
  const auto [begin, end] = context.client_metadata().equal_range(key);
  for (auto it = begin; it != end; ++it) out.emplace_back(key, std::string(it->second.data(), it->second.size()));
}

}  // namespace

EngineCaller::EngineCaller(const grpc::CallbackServerContext& context) : deadline_(context.raw_deadline()) {
  for (const char* key : {"authorization", "x-api-key"}) Take(context, key, keys_);
  for (const char* key : {kTenantKey, kTraceparent}) Take(context, key, others_);
}

void EngineCaller::Describe(grpc::ClientContext& context) const {
  for (const Metadata* const metadata : {&keys_, &others_}) {
    for (const auto& [key, value] : *metadata) context.AddMetadata(key, value);
  }
  context.set_deadline(deadline_);
}

}  // namespace runahead
