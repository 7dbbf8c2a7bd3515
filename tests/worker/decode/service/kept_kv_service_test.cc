#include "worker/decode/service/kept_kv_service.h"

#include <atomic>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "server/rpc/channel.h"
#include "server/rpc/server.h"
#include "server/rpc/status.h"
#include "tests/testing/connected_channel.h"
#include "tests/worker/kv/known_fixture.h"

namespace runahead {
namespace {

class KeptKvServiceTest : public KvStoreKnown {
 protected:
  KeptKvServiceTest() {
    service_ = std::make_unique<KeptKvService>(*store_, [this] { ++forgets_; });
    RpcServerOptions options;
    options.listen = "127.0.0.1:0";
    options.services = {service_.get()};
    server_ = *RpcServer::Start(options);
    stub_ = v1::KeptKv::NewStub(testing::Connected(MakeChannel(server_->address())));
  }
  ~KeptKvServiceTest() override { server_ = nullptr; }

  absl::StatusOr<v1::KeptMemory> Look(uint32_t epoch = 0) {
    grpc::ClientContext context;
    v1::LookKeptRequest request;
    request.set_epoch(epoch);
    v1::KeptMemory memory;
    const absl::Status status = FromGrpcStatus(stub_->Look(&context, request, &memory));
    if (!status.ok()) return status;
    return memory;
  }
  absl::StatusOr<int64_t> Forget(const v1::ForgetKeptRequest& request) {
    grpc::ClientContext context;
    v1::ForgetKeptReply reply;
    const absl::Status status = FromGrpcStatus(stub_->Forget(&context, request, &reply));
    if (!status.ok()) return status;
    return reply.freed_bytes();
  }
  static v1::ForgetKeptRequest OfSalt(const std::string& salt) {
    v1::ForgetKeptRequest request;
    request.set_salt(salt);
    return request;
  }

  std::atomic<int> forgets_ = 0;
  std::unique_ptr<KeptKvService> service_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<v1::KeptKv::Stub> stub_;
};

TEST_F(KeptKvServiceTest, SaysWhatIsKeptUsedAndGone) {
  Leave(SomeIds(600), 500);
  Reserve(100, 300);
  absl::StatusOr<v1::KeptMemory> memory = Look();
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->kept_bytes(), 3 * kBlockBytes);
  EXPECT_EQ(memory->used_bytes(), 2 * kBlockBytes);
  EXPECT_EQ(memory->capacity_bytes(), kBlocks * kBlockBytes);
  EXPECT_EQ(memory->evicted_bytes(), 0);
  Reserve(1, 5 * kKvBlockTokens);
  memory = Look();
  EXPECT_EQ(memory->kept_bytes(), kBlockBytes);
  EXPECT_EQ(memory->evicted_bytes(), 2 * kBlockBytes);
}

TEST_F(KeptKvServiceTest, ForgetsWhatIsOfASaltOrEverything) {
  Leave(SomeIds(600), 500);
  Leave(SomeIds(300), 300, {.salt = "alice"});
  EXPECT_EQ(*Forget(OfSalt("bob")), 0);
  EXPECT_EQ(*Forget(OfSalt("alice")), 2 * kBlockBytes);
  EXPECT_EQ(*Forget(OfSalt("")), 3 * kBlockBytes) << "an empty one is a salt, too";
  Leave(SomeIds(600), 500);
  Leave(SomeIds(300), 300, {.salt = "alice"});
  EXPECT_EQ(*Forget({}), 5 * kBlockBytes);
  EXPECT_EQ(Look()->kept_bytes(), 0);
  EXPECT_EQ(forgets_, 4);
}

TEST_F(KeptKvServiceTest, ARouterOfAnotherEpochIsToldSo) {
  Leave(SomeIds(600), 500);
  v1::ForgetKeptRequest request;
  request.set_epoch(7);
  EXPECT_EQ(Look(7).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Forget(request).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Kept(), 3);
  EXPECT_EQ(forgets_, 0);
}

}  // namespace
}  // namespace runahead
