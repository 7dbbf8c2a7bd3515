// `runahead cache` as a program, with a router whose answers the test writes.
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/cache.grpc.pb.h"
#include "server/rpc/server.h"
#include "server/rpc/status.h"
#include "tests/testing/test_process.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TestProcess;

class FakeCache final : public v1::Cache::Service {
 public:
  FakeCache() { server_ = *RpcServer::Start({.listen = "127.0.0.1:0", .services = {this}, .health_names = {}}); }
  const std::string& address() const { return server_->address(); }

  // What calls give; set before them.
  absl::Status status;
  v1::ShowCacheResponse shown;
  v1::EmptyCacheResponse emptied;
  int empties() const {
    MutexLock lock(mu_);
    return empties_;
  }
  std::string authorization() const {
    MutexLock lock(mu_);
    return authorization_;
  }

  grpc::Status Show(grpc::ServerContext* context, const v1::ShowCacheRequest*,
                    v1::ShowCacheResponse* response) override {
    MutexLock lock(mu_);
    const auto key = context->client_metadata().find("authorization");
    if (key != context->client_metadata().end()) authorization_.assign(key->second.data(), key->second.size());
    *response = shown;
    return ToGrpcStatus(status);
  }
  grpc::Status Empty(grpc::ServerContext*, const v1::EmptyCacheRequest*, v1::EmptyCacheResponse* response) override {
    MutexLock lock(mu_);
    ++empties_;
    *response = emptied;
    return ToGrpcStatus(status);
  }

 private:
  mutable Mutex mu_;
  int empties_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  std::string authorization_ RUNAHEAD_GUARDED_BY(mu_);
  std::unique_ptr<RpcServer> server_;
};

class CacheCommandTest : public ::testing::Test {
 protected:
  CacheCommandTest() {
    v1::ShowCacheResponse& shown = router_.shown;
    shown.set_on(true);
    shown.set_index_tokens(6000);
    shown.set_index_bytes(3 << 19);
    shown.mutable_totals()->set_prompt_tokens(10000);
    shown.mutable_totals()->set_known_by_decode(2000);
    shown.mutable_totals()->set_known_by_chain(500);
    v1::CacheOfWorker& worker = *shown.add_workers();
    worker.set_name("decode-0");
    worker.set_address("127.0.0.1:7201");
    worker.set_continues(true);
    worker.set_index_tokens(6000);
    worker.mutable_memory()->set_kept_bytes(5 << 20);
    worker.mutable_memory()->set_used_bytes(1 << 20);
    worker.mutable_memory()->set_capacity_bytes(int64_t{2} << 30);
    worker.mutable_memory()->set_evicted_bytes(1 << 19);
    v1::CacheOfWorker& absent = *shown.add_workers();
    absent.set_address("127.0.0.1:7202");
    absent.set_error("not reached yet");
  }

  std::string Run(const std::vector<std::string>& more = {}, int code = 0) {
    std::vector<std::string> args = {RUNAHEAD_BINARY, "cache", "--router", router_.address()};
    args.insert(args.end(), more.begin(), more.end());
    TestProcess process(args);
    EXPECT_EQ(process.Wait(), code) << process.err();
    err_ = process.err();
    return process.out();
  }

  FakeCache router_;
  std::string err_;
};

TEST_F(CacheCommandTest, ShowsATableOfDecodeWorkers) {
  EXPECT_EQ(Run(),
            "index: 6000 tokens in 1.5 MiB of the router's memory\n"
            "prompts: 10000 tokens since the router's start, 2500 of them known (25.0%): 2000 where the decode worker "
            "computed the rest, 500 where a chain did\n"
            "\n"
            "decode worker      kept   in use  capacity    evicted  index tokens  continues  lends\n"
            "decode-0        5.0 MiB  1.0 MiB   2.0 GiB  512.0 KiB          6000        yes     no\n"
            "127.0.0.1:7202        -        -         -          -             0          -      -\n"
            "127.0.0.1:7202 could not be asked: not reached yet\n");
  EXPECT_EQ(err_, "");
  EXPECT_EQ(router_.empties(), 0);
}

TEST_F(CacheCommandTest, SaysAllOfItAsOneJsonObject) {
  const nlohmann::json shown = nlohmann::json::parse(Run({"--json"}));
  EXPECT_EQ(shown.at("on"), true);
  EXPECT_EQ(shown.at("key"), "");
  EXPECT_EQ(shown.at("index_tokens"), 6000);
  EXPECT_EQ(shown.at("index_bytes"), 3 << 19);
  EXPECT_EQ(shown.at("totals").at("prompt_tokens"), 10000);
  EXPECT_EQ(shown.at("totals").at("known_by_decode"), 2000);
  EXPECT_EQ(shown.at("totals").at("known_by_chain"), 500);
  const nlohmann::json& worker = shown.at("workers").at(0);
  EXPECT_EQ(worker.at("name"), "decode-0");
  EXPECT_EQ(worker.at("address"), "127.0.0.1:7201");
  EXPECT_EQ(worker.at("kept_bytes"), 5 << 20);
  EXPECT_EQ(worker.at("used_bytes"), 1 << 20);
  EXPECT_EQ(worker.at("capacity_bytes"), int64_t{2} << 30);
  EXPECT_EQ(worker.at("evicted_bytes"), 1 << 19);
  EXPECT_EQ(worker.at("index_tokens"), 6000);
  EXPECT_EQ(worker.at("continues"), true);
  EXPECT_EQ(worker.at("lends"), false);
  EXPECT_EQ(worker.at("error"), "");
  const nlohmann::json& absent = shown.at("workers").at(1);
  EXPECT_TRUE(absent.at("kept_bytes").is_null()) << "not known, which is not 0";
  EXPECT_TRUE(absent.at("lends").is_null());
  EXPECT_EQ(absent.at("error"), "not reached yet");
}

TEST_F(CacheCommandTest, WithAKeyItSaysWhoseAndNoTotals) {
  router_.shown.set_key("alice");
  router_.shown.clear_totals();
  const std::string text = Run({"--api-key", "runahead_secret"});
  EXPECT_THAT(text, HasSubstr("index of the API key \"alice\": 6000 tokens"));
  EXPECT_EQ(text.find("prompts:"), std::string::npos);
  EXPECT_EQ(router_.authorization(), "Bearer runahead_secret");
  EXPECT_TRUE(nlohmann::json::parse(Run({"--json"})).at("totals").is_null());
}

TEST_F(CacheCommandTest, SaysWhereTheRouterLooksForNone) {
  router_.shown.set_on(false);
  EXPECT_THAT(Run(), HasSubstr("known_beginnings: off"));
}

TEST_F(CacheCommandTest, EmptiesItAndFailsWhereAWorkerWasNotEmptied) {
  router_.emptied.set_index_tokens(6000);
  v1::EmptiedWorker& worker = *router_.emptied.add_workers();
  worker.set_name("decode-0");
  worker.set_freed_bytes(5 << 20);
  EXPECT_EQ(Run({"--empty"}), "index: 6000 tokens were forgotten\ndecode-0: 5.0 MiB were freed\n");
  EXPECT_EQ(router_.empties(), 1);
  v1::EmptiedWorker& away = *router_.emptied.add_workers();
  away.set_address("127.0.0.1:7202");
  away.set_error("not reached yet");
  EXPECT_THAT(Run({"--empty"}, 1), HasSubstr("127.0.0.1:7202: not emptied: not reached yet\n"));
  const nlohmann::json emptied = nlohmann::json::parse(Run({"--empty", "--json"}, 1));
  EXPECT_EQ(emptied.at("index_tokens"), 6000);
  EXPECT_EQ(emptied.at("workers").at(0).at("emptied"), true);
  EXPECT_EQ(emptied.at("workers").at(0).at("freed_bytes"), 5 << 20);
  EXPECT_EQ(emptied.at("workers").at(1).at("emptied"), false);
  EXPECT_EQ(emptied.at("workers").at(1).at("error"), "not reached yet");
}

TEST_F(CacheCommandTest, RefusalsAndWrongUsageAreToldOnStderr) {
  router_.status = absl::UnauthenticatedError("the API key is none that this router takes");
  EXPECT_EQ(Run({}, 1), "");
  EXPECT_THAT(err_, AllOf(HasSubstr("runahead cache: "), HasSubstr("the API key is none")));
  TestProcess no_router({RUNAHEAD_BINARY, "cache"});
  EXPECT_EQ(no_router.Wait(), 2);
  TestProcess no_address({RUNAHEAD_BINARY, "cache", "--router", "nowhere"});
  EXPECT_EQ(no_address.Wait(), 2);
  EXPECT_THAT(no_address.err(), HasSubstr("--router"));
}

}  // namespace
}  // namespace runahead
