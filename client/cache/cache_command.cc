#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>

#include "client/base/command.h"
#include "client/base/connection.h"
#include "client/cache/cache_output.h"
#include "server/rpc/channel.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

constexpr char kCache[] = "cache";
// The router waits two seconds for a worker.
constexpr absl::Duration kCacheTimeout = absl::Seconds(30);

struct CacheFlags {
  RouterFlags router;
  bool empty = false;
  bool json = false;
};

int ShowCache(v1::Cache::StubInterface& stub, bool json) {
  grpc::ClientContext context;
  SetTimeout(context, kCacheTimeout);
  v1::ShowCacheResponse shown;
  const absl::Status status = FromGrpcStatus(stub.Show(&context, {}, &shown));
  if (!status.ok()) return Refused(kCache, status);
  std::cout << (json ? CacheJson(shown) + "\n" : CacheText(shown)) << std::flush;
  return kDone;
}

int EmptyCache(v1::Cache::StubInterface& stub, bool json) {
  grpc::ClientContext context;
  SetTimeout(context, kCacheTimeout);
  v1::EmptyCacheResponse emptied;
  const absl::Status status = FromGrpcStatus(stub.Empty(&context, {}, &emptied));
  if (!status.ok()) return Refused(kCache, status);
  std::cout << (json ? EmptiedJson(emptied) + "\n" : EmptiedText(emptied)) << std::flush;
  const bool all = std::all_of(emptied.workers().begin(), emptied.workers().end(),
                               [](const v1::EmptiedWorker& worker) { return worker.error().empty(); });
  return all ? kDone : kFailed;
}

int RunCache(const CacheFlags& flags) {
  const auto stub = ConnectToCache(flags.router);
  if (!stub.ok()) return NotConnected(kCache, stub.status());
  return flags.empty ? EmptyCache(**stub, flags.json) : ShowCache(**stub, flags.json);
}

}  // namespace

void AddCacheCommand(CLI::App& app, Command* chosen) {
  CLI::App& cache = *app.add_subcommand(
      kCache,
      "Shows what decode workers keep of sequences that ended, for prompts that begin alike, and what that was good\n"
      "for; or empties it. With an API key it is about that key's beginnings.");
  const auto flags = std::make_shared<CacheFlags>();
  flags->router.AddTo(cache);
  cache.add_flag(
      "--empty", flags->empty,
      "Forget all of it. What runs goes on, and is kept when it ends. Exit code 1: a worker was not emptied");
  cache.add_flag("--json", flags->json, "One JSON object: {\"index_tokens\",..,\"workers\":[..]}");
  cache.callback([flags, chosen] { *chosen = [flags] { return RunCache(*flags); }; });
}

}  // namespace runahead
