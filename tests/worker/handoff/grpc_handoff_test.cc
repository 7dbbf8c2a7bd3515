#include "worker/handoff/grpc_handoff.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <sched.h>

#include "server/rpc/server.h"
#include "tests/worker/handoff/handoff_contract.h"

namespace runahead {
namespace {

using ::runahead::testing::Bytes;
using ::runahead::testing::HandoffContract;
using ::runahead::testing::HandoffWorld;
using ::runahead::testing::kRowBytes;
using ::runahead::testing::Pattern;

class GrpcWorld final : public HandoffWorld {
 public:
  explicit GrpcWorld(MemoryKind tier = MemoryKind::kHost)
      : HandoffWorld(tier), slices_(*store, {RowForm::kF32, [this] { ++corrupt; }, &receiving}), service_(slices_) {
    RpcServerOptions options;
    options.listen = "127.0.0.1:0";
    options.services = {&service_};
    server_ = *RpcServer::Start(options);
    address_ = server_->address();
    for (auto& sender : senders_) {
      sender = std::make_unique<RetryingSender>(
          MakeGrpcSliceTransport(
              [this](const PeerId&) -> absl::StatusOr<std::shared_ptr<grpc::Channel>> { return channel(); }),
          HandoffSenderOptions{[this] { ++retries; }, &sending});
    }
  }
  HandoffSender& sender(int process) override { return *senders_[process]; }
  PeerId decode() const override { return {address_, 77}; }
  std::shared_ptr<grpc::Channel> channel() const {
    return grpc::CreateChannel(address_, grpc::InsecureChannelCredentials());
  }
  void StopDecode() { server_.reset(); }
  void StopSender(int process) { senders_[process].reset(); }

 private:
  SliceReceiver slices_;
  GrpcHandoffService service_;
  std::string address_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<RetryingSender> senders_[3];
};

INSTANTIATE_TEST_SUITE_P(Grpc, HandoffContract,
                         ::testing::Values([] { return std::unique_ptr<HandoffWorld>(new GrpcWorld); }));
INSTANTIATE_TEST_SUITE_P(GrpcToDevice, HandoffContract, ::testing::Values([] {
                           return std::unique_ptr<HandoffWorld>(new GrpcWorld(MemoryKind::kDevice));
                         }));

class GrpcHandoff : public ::testing::Test {
 protected:
  static absl::StatusCode Code(const Event& event) { return event.Wait(absl::Seconds(60)).code(); }
  Event Push(int64_t tokens) {
    return world_.sender(0).Push(world_.decode(), {lease_, 0, 0, tokens}, Pattern(tokens * kRowBytes, 1), Event());
  }
  // A stream of ours, to say what no sender of ours says.
  grpc::Status Say(const std::vector<v1::HandoffRequest>& requests, int replies_wanted, std::vector<int>& verdicts) {
    const auto stub = v1::KvHandoff::NewStub(world_.channel());
    grpc::ClientContext context;
    const auto stream = stub->Push(&context);
    for (const v1::HandoffRequest& request : requests) stream->Write(request);
    v1::HandoffReply reply;
    while (replies_wanted-- > 0 && stream->Read(&reply)) verdicts.push_back(reply.verdict());
    stream->WritesDone();
    return stream->Finish();
  }
  v1::HandoffRequest Header(uint64_t bytes, const std::string& dtype = "f32") const {
    v1::HandoffRequest request;
    v1::SliceHeader& header = *request.mutable_header();
    header.mutable_lease()->set_incarnation(lease_.incarnation);
    header.mutable_lease()->set_number(lease_.number);
    header.set_end(static_cast<int32_t>(bytes / kRowBytes));
    header.set_kind(v1::SLICE_KIND_KV);
    header.set_dtype(dtype);
    header.set_bytes(bytes);
    return request;
  }
  static v1::HandoffRequest Chunk(size_t bytes) {
    v1::HandoffRequest request;
    request.set_chunk(std::string(bytes, 'x'));
    return request;
  }

  GrpcWorld world_;
  const LeaseId lease_ = *world_.store->Reserve(2000, 2000);
};

TEST_F(GrpcHandoff, ADecodeWorkerThatStopsMakesItUnavailable) {
  EXPECT_EQ(Code(Push(100)), absl::StatusCode::kOk);
  world_.StopDecode();
  EXPECT_EQ(Code(Push(2000)), absl::StatusCode::kUnavailable);
}

TEST_F(GrpcHandoff, ASenderThatStopsEndsWhatItHasUnderWay) {
  world_.receiving.HoldVerdicts();
  const Event pending = Push(2000);
  world_.receiving.AwaitHeld(1);
  world_.StopSender(0);
  EXPECT_EQ(Code(pending), absl::StatusCode::kUnavailable);
  world_.receiving.ReleaseVerdicts();
}

TEST_F(GrpcHandoff, MalformedStreamsAreRefusedAndHarmNothing) {
  std::vector<int> verdicts;
  EXPECT_EQ(Say({Chunk(5)}, 1, verdicts).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Say({v1::HandoffRequest()}, 1, verdicts).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Say({Header(640), Header(640)}, 1, verdicts).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Say({Header(640), Chunk(641)}, 1, verdicts).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(verdicts.empty());
  EXPECT_TRUE(Say({Header(640), Chunk(100)}, 0, verdicts).ok()) << "broken off in the middle";
  EXPECT_EQ(Code(Push(2000)), absl::StatusCode::kOk) << "no write was left under way";
}

TEST_F(GrpcHandoff, ALeaseOutlivesItsTimeWhileASlowSendersBytesAreUnderWay) {
  const BufferRef rows = Pattern(1000 * kRowBytes, 1);
  v1::HandoffRequest header = Header(rows.size);
  header.mutable_header()->set_xxh64(HashPieces({rows}));
  const auto chunk = [&rows](size_t begin, size_t end) {
    v1::HandoffRequest request;
    request.set_chunk(std::string(Bytes(rows.Slice(begin, end - begin))));
    return request;
  };
  const volatile std::byte* first = world_.store->BeginWrite(lease_, 0, 0, 1)->destination()[0].data();
  const std::byte before = *first;
  const auto stub = v1::KvHandoff::NewStub(world_.channel());
  grpc::ClientContext context;
  const auto stream = stub->Push(&context);
  stream->Write(header);
  stream->Write(chunk(0, 5000));
  while (*first == before) sched_yield();
  world_.clock.Advance(10 * kLeaseLife);
  EXPECT_EQ(world_.store->ReapExpired(), 0);
  stream->Write(chunk(5000, rows.size));
  v1::HandoffReply reply;
  ASSERT_TRUE(stream->Read(&reply));
  EXPECT_EQ(reply.verdict(), v1::SLICE_VERDICT_ACCEPTED);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(GrpcHandoff, ASendersEndLetsItsLeaseExpire) {
  const volatile std::byte* first = world_.store->BeginWrite(lease_, 0, 0, 1)->destination()[0].data();
  const std::byte before = *first;
  {
    const auto stub = v1::KvHandoff::NewStub(world_.channel());
    grpc::ClientContext context;
    const auto stream = stub->Push(&context);
    stream->Write(Header(1000 * kRowBytes));
    stream->Write(Chunk(5000));
    while (*first == before) sched_yield();
    context.TryCancel();
    EXPECT_FALSE(stream->Finish().ok());
  }
  while (world_.store->ReapExpired() == 0) world_.clock.Advance(kLeaseLife + absl::Seconds(1));
}

TEST_F(GrpcHandoff, ARefusedSlicesChunksAreSkippedAndRepliesKeepTheOrder) {
  std::vector<int> verdicts;
  EXPECT_TRUE(Say({Header(640, "f64"), Chunk(600), Chunk(0), Chunk(40), Header(kRowBytes), Chunk(kRowBytes), Header(0)},
                  3, verdicts)
                  .ok());
  EXPECT_THAT(verdicts, ::testing::ElementsAre(v1::SLICE_VERDICT_BAD_RANGE, v1::SLICE_VERDICT_CORRUPT,
                                               v1::SLICE_VERDICT_BAD_RANGE));
}

}  // namespace
}  // namespace runahead
