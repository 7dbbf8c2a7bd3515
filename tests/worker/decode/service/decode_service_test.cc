#include "worker/decode/service/decode_service.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/placement/beginning_hash.h"
#include "server/rpc/channel.h"
#include "server/rpc/server.h"
#include "server/rpc/status.h"
#include "tests/testing/await.h"
#include "tests/testing/await_change.h"
#include "tests/testing/connected_channel.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/sampling_device.h"
#include "tests/worker/decode/engine_fixture.h"
#include "tests/worker/decode/hash_model.h"
#include "tests/worker/decode/hash_sequences.h"
#include "worker/decode/static_window_loop.h"
#include "worker/service/proto_convert.h"

namespace runahead {
namespace {

using testing::ExpectedTokens;
using testing::FakeClock;
using testing::FillHashKv;
using testing::HashDevice;
using testing::HashModel;
using ::testing::HasSubstr;
using testing::MakeHashSequence;

v1::DecodeRequest ToProto(const DecodeSequence& sequence) {
  v1::DecodeRequest request;
  *request.mutable_lease() = LeaseToProto(sequence.lease);
  for (const int32_t id : sequence.prompt_ids) request.add_prompt_ids(id);
  request.set_first_token(sequence.output_ids.at(0));
  request.set_max_tokens(static_cast<int32_t>(sequence.max_tokens));
  for (const int32_t id : sequence.stop_ids) request.add_stop_ids(id);
  return request;
}

// With X of `x_row_bytes` a row in the store; decode is over static windows for contexts of `window`, or over the
// store. kv_from, lost_without_x: DecodeServiceOptions. step_rows: DecodeEngineOptions.
struct DecodeServiceSetup {
  int64_t x_row_bytes = 0, window = 0;
  std::function<std::optional<int64_t>(int64_t)> kv_from = {};
  int64_t step_rows = 0;
  std::function<double(int64_t)> lost_without_x = {};
};

class DecodeServiceTest : public ::testing::Test {
 protected:
  explicit DecodeServiceTest(const DecodeServiceSetup& setup = {}) {
    KvStoreOptions of_store{HashModel::kLayers, 16, 16 * kKvBlockTokens, 5};
    of_store.x_row_bytes = setup.x_row_bytes;
    absl::StatusOr<std::unique_ptr<KvStore>> store = KvStore::Create(of_store, device_, clock_);
    RUNAHEAD_CHECK(store.ok());
    store_ = *std::move(store);
    auto model = model_ = std::make_shared<HashModel>(device_);
    DecodeEngineOptions steps;
    steps.step_rows = setup.step_rows;
    steps.on_parking = [this](const DecodeParking& parking) {
      const v1::DecodeLoad load = service_->Load();
      MutexLock lock(mu_);
      if (parking.one_more) at_parking_.push_back(load);
    };
    if (setup.window > 0) {
      steps.make_loop = [this, window = setup.window, &model = *model](Stream& stream) {
        return StaticWindowLoop::Create(model, device_, *store_, stream, {*MakeStaticWindowSize(window), 4});
      };
    }
    absl::StatusOr<std::unique_ptr<DecodeEngine>> engine =
        DecodeEngine::Create(device_, std::move(model), *store_, std::move(steps), clock_);
    RUNAHEAD_CHECK(engine.ok());
    engine_ = *std::move(engine);
    DecodeServiceOptions service{absl::Seconds(60), [this] { LeasesChanged(); }, setup.kv_from, setup.lost_without_x};
    service_ = std::make_unique<DecodeService>(*engine_, *store_, std::move(service), clock_);
  }
  ~DecodeServiceTest() override { service_ = nullptr; }

  void LeasesChanged() {
    MutexLock lock(mu_);
    changed_.NotifyAll();
  }
  // A call's end and its lease's end are the same moment to a client only after it has read the status.
  void AwaitNoLeases() {
    MutexLock lock(mu_);
    testing::ChangeWait wait("no lease is left");
    while (store_->stats().leases > 0) {
      if (!wait.Next(mu_, changed_)) return;
    }
  }

  HashDevice device_;
  FakeClock clock_;
  Mutex mu_;
  CondVar changed_;
  std::vector<v1::DecodeLoad> at_parking_ RUNAHEAD_GUARDED_BY(mu_);  // what the service said when one was parked
  std::shared_ptr<HashModel> model_;
  std::unique_ptr<KvStore> store_;
  std::unique_ptr<DecodeEngine> engine_;
  std::unique_ptr<DecodeService> service_;
};

// Over TCP on loopback.
class DecodeServiceTcp : public DecodeServiceTest {
 protected:
  explicit DecodeServiceTcp(const DecodeServiceSetup& setup = {}) : DecodeServiceTest(setup) {
    RpcServerOptions options;
    options.listen = "127.0.0.1:0";
    options.services = {service_.get()};
    options.health_names = {"runahead.v1.Decode"};
    absl::StatusOr<std::unique_ptr<RpcServer>> server = RpcServer::Start(options);
    RUNAHEAD_CHECK(server.ok());
    server_ = *std::move(server);
    service_->SetGate(server_->gate());
    stub_ = v1::Decode::NewStub(testing::Connected(MakeChannel(server_->address())));
  }
  ~DecodeServiceTcp() override { server_ = nullptr; }

  absl::StatusOr<std::vector<int32_t>> Generate(const v1::DecodeRequest& request) {
    grpc::ClientContext context;
    const auto reader = stub_->Generate(&context, request);
    v1::DecodeReply reply;
    std::vector<int32_t> ids;
    while (reader->Read(&reply)) {
      EXPECT_GE(reply.tokens_size(), 1);
      for (const v1::SampledToken& token : reply.tokens()) ids.push_back(token.id());
    }
    RUNAHEAD_RETURN_IF_ERROR(FromGrpcStatus(reader->Finish()));
    return ids;
  }
  absl::StatusOr<v1::ReserveReply> Reserve(int prompt, int total, std::optional<int> max_x_tokens = std::nullopt,
                                           std::optional<int> handed_tokens = std::nullopt) {
    grpc::ClientContext context;
    v1::ReserveRequest request;
    request.set_prompt_tokens(prompt);
    request.set_total_tokens(total);
    if (max_x_tokens.has_value()) request.set_max_x_tokens(*max_x_tokens);
    if (handed_tokens.has_value()) request.set_handed_tokens(*handed_tokens);
    v1::ReserveReply reply;
    RUNAHEAD_RETURN_IF_ERROR(FromGrpcStatus(stub_->Reserve(&context, request, &reply)));
    return reply;
  }
  absl::StatusOr<v1::ReserveReply> ReserveExpecting(int prompt, int total, int expected, bool parked_first = false) {
    grpc::ClientContext context;
    v1::ReserveRequest request;
    request.set_prompt_tokens(prompt);
    request.set_total_tokens(total);
    request.set_expected_tokens(expected);
    request.set_parked_first(parked_first);
    v1::ReserveReply reply;
    RUNAHEAD_RETURN_IF_ERROR(FromGrpcStatus(stub_->Reserve(&context, request, &reply)));
    return reply;
  }
  absl::Status Renew(const v1::LeaseId& lease) {
    grpc::ClientContext context;
    v1::RenewRequest request;
    *request.mutable_lease() = lease;
    v1::RenewReply reply;
    return FromGrpcStatus(stub_->Renew(&context, request, &reply));
  }
  // Until a Generate call has come in.
  void AwaitCall() {
    EXPECT_TRUE(testing::Await("a call has come in", [&] { return server_->gate().inside() > 0; }));
  }

  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<v1::Decode::Stub> stub_;
};

TEST_F(DecodeServiceTcp, SaysWhatIsTakenAndWhatIsFree) {
  const auto expect = [this](int leases, int blocks) {
    const v1::DecodeLoad load = service_->Load();
    EXPECT_EQ(load.slots_used(), leases);
    EXPECT_EQ(load.slots_free(), DecodeEngineOptions().max_batch - leases);
    EXPECT_EQ(load.running(), 0) << "nobody decodes";
    EXPECT_EQ(load.remaining_tokens_size(), 0);
    EXPECT_EQ(load.blocks_used(), blocks);
    EXPECT_EQ(load.blocks_growable(), 16 - blocks);
  };
  expect(0, 0);
  const absl::StatusOr<v1::ReserveReply> one = Reserve(10, kKvBlockTokens + 1);
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_TRUE(Reserve(10, 20).ok());
  expect(2, 3);
  store_->Release(LeaseFromProto(one->lease()));
  expect(1, 1);
}

TEST_F(DecodeServiceTcp, OneThatIsTracedEndsWithItsSpans) {
  const DecodeSequence sequence = MakeHashSequence(*store_, 1, 10, 5);
  FillHashKv(*store_, sequence);
  v1::DecodeRequest request = ToProto(sequence);
  request.set_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, request);
  std::vector<v1::DecodeReply> replies;
  for (v1::DecodeReply reply; reader->Read(&reply);) replies.push_back(reply);
  EXPECT_TRUE(reader->Finish().ok());
  ASSERT_GE(replies.size(), 2u);
  const v1::DecodeReply last = replies.back();
  replies.pop_back();
  int tokens = 0;
  for (const v1::DecodeReply& reply : replies) {
    EXPECT_FALSE(reply.has_spans());
    tokens += reply.tokens_size();
  }
  EXPECT_EQ(tokens, 4);
  EXPECT_EQ(last.tokens_size(), 0);
  std::vector<std::string> names;
  for (const v1::TraceSpan& span : last.spans().spans()) {
    names.push_back(span.name());
    EXPECT_EQ(span.layer(), -1);
    EXPECT_EQ(span.amount(), span.name() == "step" ? 1 : 0);
  }
  EXPECT_THAT(names, ::testing::ElementsAre("wait_kv", "queue", "step", "step", "step", "step"));
}

class DecodeServiceOverWindows : public DecodeServiceTcp {
 protected:
  DecodeServiceOverWindows() : DecodeServiceTcp({.window = 64}) {}
};

TEST_F(DecodeServiceOverWindows, ReservesWhatFitsAndRefusesTheRestBeforePrefill) {
  EXPECT_TRUE(Reserve(10, 64).ok());
  const absl::Status longer = Reserve(10, 65).status();
  EXPECT_EQ(longer.code(), absl::StatusCode::kOutOfRange);  // which a router passes on as it is
  EXPECT_THAT(longer.message(), HasSubstr("a static_window of at least 65"));
  grpc::ClientContext context;
  v1::ReserveRequest moved;
  moved.set_prompt_tokens(10);
  moved.set_total_tokens(60);
  moved.set_arriving_tokens(20);
  v1::ReserveReply reply;
  EXPECT_EQ(stub_->Reserve(&context, moved, &reply).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(store_->stats().leases, 1);
}

// Says at once that all has been taken, or that nothing is.
class PromptCarrier final : public SequenceCarrier {
 public:
  explicit PromptCarrier(absl::StatusOr<int64_t> answer) : answer_(std::move(answer)) {}
  void Send(KvStore::Lent, Done done) override { done(answer_); }
  void Cancel() override {}

 private:
  const absl::StatusOr<int64_t> answer_;
};

class DecodeServiceMoves : public DecodeServiceTcp {
 protected:
  struct Stream {
    std::vector<v1::DecodeReply> replies;
    grpc::Status status;
  };
  // All that comes of a sequence that is asked to move when it has given two tokens.
  Stream MoveBy(const absl::StatusOr<int64_t>& answer) {
    sequence_ = MakeHashSequence(*store_, 5, 100, 300);
    FillHashKv(*store_, sequence_);
    model_->on_pass = [this] { door_.Pass(); };
    door_.LetPass(2);
    grpc::ClientContext context;
    const auto reader = stub_->Generate(&context, ToProto(sequence_));
    Stream stream;
    door_.AwaitComing(3);  // the step behind the two that may pass
    EXPECT_TRUE(engine_->Move(sequence_.lease, std::make_shared<PromptCarrier>(answer), 400));
    door_.Open();
    for (v1::DecodeReply reply; reader->Read(&reply);) stream.replies.push_back(reply);
    stream.status = reader->Finish();
    return stream;
  }

  testing::Door door_;
  DecodeSequence sequence_;
};

TEST_F(DecodeServiceMoves, AStreamThatMovesEndsWithHowManyTokensTheOtherHas) {
  const Stream stream = MoveBy(1000);
  EXPECT_TRUE(stream.status.ok()) << stream.status.error_message();
  int tokens = 0;
  for (const v1::DecodeReply& reply : stream.replies) {
    tokens += reply.tokens_size();
    EXPECT_NE(reply.has_move(), reply.tokens_size() > 0) << "in a reply of its own";
  }
  const v1::MoveEnd& move = stream.replies.back().move();
  EXPECT_EQ(move.moved_tokens(), 100 + tokens) << "all but the last one's";
  EXPECT_LT(tokens, 299);
  EXPECT_EQ(move.bytes() % 1000, 0);
  EXPECT_GT(move.bytes(), 0);
  AwaitNoLeases();
}

TEST_F(DecodeServiceMoves, AStreamThatDoesNotSaysWhyAndGoesOn) {
  const Stream stream = MoveBy(absl::UnavailableError("the other one is gone"));
  EXPECT_TRUE(stream.status.ok()) << stream.status.error_message();
  std::vector<int32_t> ids;
  std::string why_not;
  for (const v1::DecodeReply& reply : stream.replies) {
    for (const v1::SampledToken& token : reply.tokens()) ids.push_back(token.id());
    if (reply.has_move()) why_not = reply.move().why_not();
    EXPECT_FALSE(reply.move().has_moved_tokens());
  }
  EXPECT_EQ(ids, ExpectedTokens(sequence_));
  EXPECT_EQ(why_not, "the other one is gone");
  AwaitNoLeases();
}

class DecodeServiceRows : public DecodeServiceTcp {
 protected:
  DecodeServiceRows() : DecodeServiceTcp({.step_rows = 16}) {}

  // One like `whole`, of whose prompt the first `handed` tokens come.
  DecodeSequence ReservePart(const DecodeSequence& whole, int handed) {
    DecodeSequence part = whole;
    const auto prompt = static_cast<int>(whole.prompt_ids.size());
    const absl::StatusOr<v1::ReserveReply> reply =
        Reserve(prompt, prompt + static_cast<int>(whole.max_tokens), std::nullopt, handed);
    EXPECT_TRUE(reply.ok()) << reply.status();
    EXPECT_TRUE(reply->has_handed_tokens());
    EXPECT_EQ(reply->handed_tokens(), handed);
    part.lease = LeaseFromProto(reply->lease());
    FillHashKv(*store_, part);
    return part;
  }
};

TEST_F(DecodeServiceRows, ALeaseOfWhichThePromptsBeginningComesGivesTheStreamOfAWholeOne) {
  const DecodeSequence whole = MakeHashSequence(*store_, 1, 300, 20);
  FillHashKv(*store_, whole);
  const absl::StatusOr<std::vector<int32_t>> expected = Generate(ToProto(whole));
  ASSERT_TRUE(expected.ok()) << expected.status();
  EXPECT_EQ(*expected, ExpectedTokens(whole));
  for (const int handed : {0, 200, 299}) {
    EXPECT_EQ(*Generate(ToProto(ReservePart(whole, handed))), *expected) << handed;
  }
  AwaitNoLeases();
}

// Ids of prompt and output in one list, with or without a first token in it.
TEST_F(DecodeServiceRows, AnAnswerGoesOnBehindTheOutputThatItHas) {
  const DecodeSequence whole = MakeHashSequence(*store_, 2, 100, 30);
  store_->Release(whole.lease);
  std::vector<int32_t> answer = whole.output_ids;
  for (const int32_t id : ExpectedTokens(whole)) answer.push_back(id);
  for (const size_t known : {1, 12, 29, 30}) {
    v1::DecodeRequest request = ToProto(ReservePart(whole, 60));
    request.clear_first_token();
    request.set_output_from(100);
    for (size_t i = 0; i < known; ++i) request.add_prompt_ids(answer[i]);
    EXPECT_EQ(*Generate(request), std::vector<int32_t>(answer.begin() + known, answer.end())) << known;
  }
  DecodeSequence fresh = ReservePart(whole, 60);
  v1::DecodeRequest request = ToProto(fresh);
  request.clear_first_token();
  request.set_output_from(100);
  fresh.output_ids = {};
  EXPECT_EQ(*Generate(request), ExpectedTokens(fresh));
  AwaitNoLeases();
}

TEST_F(DecodeServiceRows, ALeaseOfWhichLessIsExpectedGrowsAndSaysWhatCounts) {
  const DecodeSequence whole = MakeHashSequence(*store_, 4, 200, 700);
  store_->Release(whole.lease);
  const absl::StatusOr<v1::ReserveReply> reply = ReserveExpecting(200, 900, 600);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->counted_tokens(), 600);
  v1::DecodeLoad load = service_->Load();
  EXPECT_EQ(load.blocks_used(), 3) << "two that it has, and one that it is promised";
  EXPECT_EQ(load.blocks_growable(), 16 - 3 - 1) << "one is left to those that grow";
  EXPECT_EQ(load.parked(), 0);
  EXPECT_EQ(store_->stats().used_bytes, 2 * store_->stats().capacity_bytes / 16);
  DecodeSequence grows = whole;
  grows.lease = LeaseFromProto(reply->lease());
  FillHashKv(*store_, grows);
  EXPECT_EQ(*Generate(ToProto(grows)), ExpectedTokens(whole));
  AwaitNoLeases();
  load = service_->Load();
  EXPECT_EQ(load.blocks_used(), 0);
  EXPECT_EQ(load.blocks_growable(), 16);
}

TEST_F(DecodeServiceRows, SaysWhoIsParkedAndThatItIsNoneOfThoseThatRun) {
  std::vector<DecodeSequence> three;
  std::vector<std::future<absl::StatusOr<std::vector<int32_t>>>> answers;
  for (int seed = 0; seed < 3; ++seed) {
    three.push_back(MakeHashSequence(*store_, seed, 200, 1800));
    store_->Release(three.back().lease);
  }
  for (DecodeSequence& sequence : three) {
    sequence.lease = LeaseFromProto(ReserveExpecting(200, 2000, 200)->lease());
    FillHashKv(*store_, sequence);
  }
  // No step is over before all three calls are in.
  testing::Door door;
  model_->on_pass = [&door] { door.Pass(); };
  door.Shut();
  for (const DecodeSequence& sequence : three) {
    answers.push_back(std::async(std::launch::async, [this, &sequence] { return Generate(ToProto(sequence)); }));
  }
  EXPECT_TRUE(testing::Await("all three calls are in", [&] { return server_->gate().inside() >= 3; }));
  door.Open();
  for (size_t i = 0; i < three.size(); ++i) EXPECT_EQ(*answers[i].get(), ExpectedTokens(three[i]));
  MutexLock lock(mu_);
  ASSERT_GE(at_parking_.size(), 1u) << "16 blocks, and the three need 24";
  for (const v1::DecodeLoad& load : at_parking_) {
    EXPECT_TRUE(load.leases_grow());
    EXPECT_GE(load.parked(), 1);
    EXPECT_LE(load.running() + load.parked(), load.slots_used());
    EXPECT_EQ(load.remaining_tokens_size(), load.running()) << "when one that is parked ends nobody knows";
  }
}

TEST_F(DecodeServiceRows, OneOfWhichNothingIsExpectedCountsAsAWhole) {
  const absl::StatusOr<v1::ReserveReply> reply = Reserve(200, 900);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->counted_tokens(), 900);
  EXPECT_EQ(service_->Load().blocks_used(), 4);
}

TEST_F(DecodeServiceRows, KeepsWithTheLeaseWhetherItIsParkedFirst) {
  for (const bool first : {true, false}) {
    const absl::StatusOr<v1::ReserveReply> reply = ReserveExpecting(100, 500, 200, first);
    ASSERT_TRUE(reply.ok()) << reply.status();
    DecodeSequence sequence = MakeHashSequence(*store_, 5, 100, 400);
    sequence.lease = LeaseFromProto(reply->lease());
    FillHashKv(*store_, sequence);
    const absl::StatusOr<KvStore::Sequence> opened = store_->Open(sequence.lease);
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_EQ(opened->parked_first(), first);
  }
}

// Prompts that begin as sequences did that ended here.
class DecodeServiceKnown : public DecodeServiceRows {
 protected:
  // For `ids` and 20 tokens more, of which at least `least` are known.
  static v1::ReserveRequest ForKnown(const std::vector<int32_t>& ids, int least) {
    v1::ReserveRequest request;
    request.set_prompt_tokens(static_cast<int32_t>(ids.size()));
    request.set_total_tokens(request.prompt_tokens() + 20);
    request.set_least_known_tokens(least);
    request.mutable_prompt_ids()->Assign(ids.begin(), ids.end());
    return request;
  }
  absl::StatusOr<v1::ReserveReply> TryReserve(const v1::ReserveRequest& request) {
    grpc::ClientContext context;
    v1::ReserveReply reply;
    RUNAHEAD_RETURN_IF_ERROR(FromGrpcStatus(stub_->Reserve(&context, request, &reply)));
    return reply;
  }
  // All ids of a sequence that ended, reserved with what `request` says besides.
  std::vector<int32_t> RunToEnd(int seed, v1::ReserveRequest request = {}) {
    DecodeSequence sequence = MakeHashSequence(*store_, seed, 300, 20);
    store_->Release(sequence.lease);
    request.set_prompt_tokens(300);
    request.set_total_tokens(320);
    sequence.lease = LeaseFromProto(TryReserve(request)->lease());
    FillHashKv(*store_, sequence);
    std::vector<int32_t> ids = sequence.prompt_ids;
    ids.push_back(sequence.output_ids[0]);
    const std::vector<int32_t> answer = *Generate(ToProto(sequence));
    ids.insert(ids.end(), answer.begin(), answer.end());
    AwaitNoLeases();
    return ids;
  }
};

TEST_F(DecodeServiceKnown, APromptGoesOnFromWhatIsThere) {
  std::vector<int32_t> ids = RunToEnd(1);
  ids.insert(ids.end(), {4, 5, 6});
  const absl::StatusOr<v1::ReserveReply> reply = TryReserve(ForKnown(ids, 319));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->known_tokens(), 319);
  EXPECT_EQ(reply->handed_tokens(), 319);
  EXPECT_EQ(reply->known_output_tokens(), 19);
  DecodeSequence next;
  next.prompt_ids = ids;
  next.max_tokens = 20;
  v1::DecodeRequest request;
  *request.mutable_lease() = reply->lease();
  request.mutable_prompt_ids()->Assign(ids.begin(), ids.end());
  request.set_output_from(static_cast<int32_t>(ids.size()));
  request.set_max_tokens(20);
  EXPECT_EQ(*Generate(request), ExpectedTokens(next));
  EXPECT_EQ(TryReserve(ForKnown(ids, 322))->known_tokens(), 322) << "what it left goes further";
}

TEST_F(DecodeServiceKnown, SaysOnceWhatHadToGo) {
  const std::vector<int32_t> ids = RunToEnd(1);
  EXPECT_EQ(service_->Load().evicted_size(), 0);
  EXPECT_EQ(service_->Load().evictions(), 0u);
  ASSERT_TRUE(Reserve(10, 16 * kKvBlockTokens).ok()) << "the whole store";
  const v1::DecodeLoad load = service_->Load();
  const absl::Span<const int32_t> kept = absl::MakeSpan(ids).first(319);  // of the last token there is no KV
  const uint64_t block = BeginningHash(BeginningHash(""), kept.first(kKvBlockTokens));
  EXPECT_THAT(load.evicted(), ::testing::ElementsAre(BeginningHash(block, kept.subspan(kKvBlockTokens)), block));
  EXPECT_EQ(load.evictions(), 2u);
  EXPECT_EQ(service_->Load(load.evictions()).evicted_size(), 0);
  EXPECT_EQ(service_->Load(load.evictions()).evictions(), 2u);
}

TEST_F(DecodeServiceKnown, SaysWithItsNextAnswerWhatWasTooMuchForOne) {
  constexpr int kMost = 256, kSequences = 140;
  for (int i = 0; i < kSequences; ++i) {
    RunToEnd(i);  // leaves two blocks
    const absl::StatusOr<v1::ReserveReply> whole_store = Reserve(10, 16 * kKvBlockTokens);
    ASSERT_TRUE(whole_store.ok()) << whole_store.status();
    store_->Release(LeaseFromProto(whole_store->lease()));
  }
  const v1::DecodeLoad first = service_->Load();
  EXPECT_EQ(first.evicted_size(), kMost);
  const v1::DecodeLoad rest = service_->Load(first.evictions());
  EXPECT_EQ(rest.evicted_size(), 2 * kSequences - kMost);
  EXPECT_EQ(rest.evictions(), 2u * kSequences);
  std::set<uint64_t> said(first.evicted().begin(), first.evicted().end());
  said.insert(rest.evicted().begin(), rest.evicted().end());
  EXPECT_EQ(said.size(), 2u * kSequences);
  EXPECT_EQ(service_->Load(rest.evictions()).evicted_size(), 0);
}

TEST_F(DecodeServiceKnown, LessThanTheLeastIsNotFound) {
  std::vector<int32_t> ids = RunToEnd(1);
  ids.insert(ids.end(), {4, 5, 6});
  EXPECT_TRUE(absl::IsNotFound(TryReserve(ForKnown(ids, 320)).status()));
  store_->Release(*store_->Reserve({.prompt_tokens = 1, .total_tokens = 16 * kKvBlockTokens}));
  EXPECT_TRUE(absl::IsNotFound(TryReserve(ForKnown(ids, 1)).status())) << "its memory was needed";
  EXPECT_EQ(store_->stats().leases, 0);
}

TEST_F(DecodeServiceKnown, SaltsAreApartAndWhatIsNotToBeKeptIsNot) {
  v1::ReserveRequest salted, not_kept;
  salted.set_salt("a");
  not_kept.set_not_kept(true);
  const std::vector<int32_t> ids = RunToEnd(1, salted), others = RunToEnd(2, not_kept);
  v1::ReserveRequest request = ForKnown(ids, 1);
  EXPECT_TRUE(absl::IsNotFound(TryReserve(request).status()));
  request.set_salt("a");
  EXPECT_TRUE(TryReserve(request).ok());
  EXPECT_TRUE(absl::IsNotFound(TryReserve(ForKnown(others, 1)).status()));
}

TEST_F(DecodeServiceKnown, BadRequestsNameTheField) {
  const std::vector<int32_t> ids(10, 1);
  for (const int least : {-1, 0, 10}) {
    EXPECT_EQ(BlamedField(TryReserve(ForKnown(ids, least)).status()), "least_known_tokens");
  }
  v1::ReserveRequest request = ForKnown(ids, 1);
  request.mutable_prompt_ids()->RemoveLast();
  EXPECT_EQ(BlamedField(TryReserve(request).status()), "prompt_ids");
  request = ForKnown(ids, 1);
  request.set_handed_tokens(5);
  EXPECT_EQ(BlamedField(TryReserve(request).status()), "handed_tokens");
  request = ForKnown(ids, 1);
  request.set_arriving_tokens(10);
  EXPECT_EQ(BlamedField(TryReserve(request).status()), "arriving_tokens");
}

TEST_F(DecodeServiceKnown, AChainsRestIsHandedOffBehindExactlySoMany) {
  std::vector<int32_t> ids = RunToEnd(1);
  ids.insert(ids.end(), {4, 5, 6});
  v1::ReserveRequest request = ForKnown(ids, kKvBlockTokens);
  request.set_rest_handed(true);
  const absl::StatusOr<v1::ReserveReply> reply = TryReserve(request);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->known_tokens(), kKvBlockTokens);
  EXPECT_EQ(reply->known_output_tokens(), 0);
  EXPECT_FALSE(reply->has_handed_tokens()) << "all of the others are";
  DecodeSequence next;
  next.lease = LeaseFromProto(reply->lease());
  next.prompt_ids = ids;
  next.output_ids = {3};
  next.max_tokens = 20;
  EXPECT_FALSE(store_->Complete(next.lease).fired());
  FillHashKv(*store_, next);
  EXPECT_EQ(*Generate(ToProto(next)), ExpectedTokens(next));
  request.set_least_known_tokens(100);
  EXPECT_EQ(TryReserve(request)->known_tokens(), 100) << "not a block";
  request.clear_least_known_tokens();
  EXPECT_EQ(BlamedField(TryReserve(request).status()), "rest_handed");
}

// It takes no rows of prompts; what is kept elsewhere than in the store is lent to nobody.
TEST_F(DecodeServiceTcp, LendsABeginningToAChainWithoutRowsOfPrompts) {
  EXPECT_EQ(engine_->CheckLends(), absl::OkStatus());
  EXPECT_FALSE(engine_->CheckKnown().ok());
}
TEST_F(DecodeServiceOverWindows, RefusesToLendABeginningToAChain) {
  grpc::ClientContext context;
  v1::ReserveRequest request;
  v1::ReserveReply reply;
  request.set_prompt_tokens(kKvBlockTokens + 1);
  request.set_total_tokens(kKvBlockTokens + 20);
  request.set_least_known_tokens(kKvBlockTokens);
  request.set_rest_handed(true);
  for (int i = 0; i <= kKvBlockTokens; ++i) request.add_prompt_ids(1);
  EXPECT_EQ(stub_->Reserve(&context, request, &reply).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(DecodeServiceRows, BadRequestsNameTheField) {
  EXPECT_EQ(BlamedField(ReserveExpecting(10, 20, 9).status()), "expected_tokens");
  EXPECT_EQ(BlamedField(ReserveExpecting(10, 20, 21).status()), "expected_tokens");
  EXPECT_EQ(BlamedField(Reserve(10, 20, std::nullopt, -1).status()), "handed_tokens");
  EXPECT_EQ(BlamedField(Reserve(10, 20, std::nullopt, 10).status()), "handed_tokens");
  v1::DecodeRequest request = ToProto(MakeHashSequence(*store_, 3, 10, 5));
  for (const int from : {-1, 11}) {
    request.set_output_from(from);
    EXPECT_EQ(BlamedField(Generate(request).status()), "output_from");
  }
}

// A worker that computes no rows of prompts goes on where the whole prompt is handed off.
TEST_F(DecodeServiceOverWindows, AnAnswerGoesOnBehindTheOutputThatItHas) {
  const DecodeSequence whole = MakeHashSequence(*store_, 2, 20, 30);
  FillHashKv(*store_, whole);
  const std::vector<int32_t> expected = ExpectedTokens(whole);
  v1::DecodeRequest request = ToProto(whole);
  request.clear_first_token();
  request.set_output_from(20);
  request.add_prompt_ids(whole.output_ids[0]);
  for (size_t i = 0; i < 11; ++i) request.add_prompt_ids(expected[i]);
  EXPECT_EQ(*Generate(request), std::vector<int32_t>(expected.begin() + 11, expected.end()));
  AwaitNoLeases();
}

TEST_F(DecodeServiceOverWindows, RefusesToBeginWithWhatIsKnown) {
  grpc::ClientContext context;
  v1::ReserveRequest request;
  v1::ReserveReply reply;
  request.set_prompt_tokens(2);
  request.set_total_tokens(20);
  request.set_least_known_tokens(1);
  request.add_prompt_ids(1);
  request.add_prompt_ids(2);
  EXPECT_EQ(stub_->Reserve(&context, request, &reply).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(DecodeServiceOverWindows, RefusesAtReserveToComputeRowsOfPrompts) {
  const absl::Status refused = Reserve(10, 20, std::nullopt, 5).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("computes no rows of prompts"));
  EXPECT_EQ(store_->stats().leases, 0);
}

TEST_F(DecodeServiceTcp, ReservesAndRenews) {
  const absl::StatusOr<v1::ReserveReply> reply = Reserve(10, 4096);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->lease().incarnation(), 5u);
  EXPECT_EQ(reply->x_tokens(), 0) << "this store keeps no X";
  clock_.Advance(absl::Seconds(20));
  EXPECT_TRUE(Renew(reply->lease()).ok());
  clock_.Advance(absl::Seconds(20));
  const absl::Status full = Reserve(10, 20).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryAfter(full).has_value());
  store_->Release(LeaseFromProto(reply->lease()));
  EXPECT_EQ(Renew(reply->lease()).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Reserve(10, 20).ok());
}

TEST_F(DecodeServiceTcp, AWorkerThatComputesNoRowsOfPromptsReservesAsAWholeWhateverIsExpected) {
  const absl::StatusOr<v1::ReserveReply> reply = ReserveExpecting(10, 600, 20);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->counted_tokens(), 600);
  EXPECT_EQ(service_->Load().blocks_used(), 3);
  EXPECT_EQ(service_->Load().blocks_growable(), 13) << "nothing is left to growth";
}

TEST_F(DecodeServiceTcp, BadRequestsNameTheFieldAndTheNextOneWorks) {
  EXPECT_EQ(BlamedField(Reserve(0, 5).status()), "prompt_tokens");
  EXPECT_EQ(BlamedField(Reserve(6, 5).status()), "total_tokens");
  EXPECT_EQ(BlamedField(Reserve(5, 6, -1).status()), "max_x_tokens");
  const absl::Status too_large = Reserve(1, 5000).status();
  EXPECT_EQ(too_large.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(too_large.ToString(), HasSubstr("4096"));
  EXPECT_EQ(Generate({}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(BlamedField(Generate({}).status()), "lease");

  v1::DecodeRequest request = ToProto(MakeHashSequence(*store_, 1, 10, 5));
  request.mutable_prompt_ids()->Set(2, 1000);
  absl::Status status = Generate(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.ToString(), HasSubstr("prompt_ids[2]"));
  EXPECT_EQ(store_->stats().leases, 0) << "the lease ends with the call";

  request = ToProto(MakeHashSequence(*store_, 1, 10, 5));
  request.mutable_sampling()->set_top_p(0);
  EXPECT_THAT(Generate(request).status().ToString(), HasSubstr("sampling.top_p"));

  request = ToProto(MakeHashSequence(*store_, 1, 10, 5));
  (*request.mutable_sampling()->mutable_logit_bias())[3] = 101;
  EXPECT_THAT(Generate(request).status().ToString(), HasSubstr("sampling.logit_bias[3]: is 101"));
  request = ToProto(MakeHashSequence(*store_, 1, 10, 5));
  request.mutable_rules()->set_min_tokens(-1);
  EXPECT_THAT(Generate(request).status().ToString(), HasSubstr("rules.min_tokens: is -1"));

  const DecodeSequence good = MakeHashSequence(*store_, 2, 10, 5);
  FillHashKv(*store_, good);
  EXPECT_EQ(*Generate(ToProto(good)), ExpectedTokens(good));
}

// Over a store that keeps X.
class DecodeServiceX : public DecodeServiceTcp {
 protected:
  explicit DecodeServiceX(std::function<std::optional<int64_t>(int64_t)> kv_from = {},
                          std::function<double(int64_t)> lost_without_x = {})
      : DecodeServiceTcp({.x_row_bytes = 8, .kv_from = std::move(kv_from), .lost_without_x = lost_without_x}) {}
  // The reply for a chain's rest of 10 tokens, behind a block of `id` that a sequence left which ended.
  v1::ReserveReply ReserveRest(int32_t id, bool kept_with_x) {
    const std::vector<int32_t> ids(kKvBlockTokens + 10, id);
    const LeaseId ended =
        *store_->Reserve({.prompt_tokens = kKvBlockTokens, .total_tokens = kKvBlockTokens, .with_x = kept_with_x});
    for (int64_t layer = 0; layer < HashModel::kLayers; ++layer) {
      for (const SliceKind kind : {SliceKind::kKv, SliceKind::kX}) {
        if (kind == SliceKind::kX && !kept_with_x) continue;
        EXPECT_TRUE(store_->BeginWrite(ended, layer, 0, kKvBlockTokens, kind)->Commit().Wait().ok());
      }
    }
    store_->Open(ended)->Keep(absl::MakeSpan(ids).first(kKvBlockTokens));
    v1::ReserveRequest request;
    request.set_prompt_tokens(kKvBlockTokens + 10);
    request.set_total_tokens(kKvBlockTokens + 20);
    request.set_least_known_tokens(kKvBlockTokens);
    request.set_rest_handed(true);
    request.mutable_prompt_ids()->Assign(ids.begin(), ids.end());
    v1::ReserveReply reply;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->Reserve(&context, request, &reply).ok());
    EXPECT_EQ(reply.known_tokens(), kKvBlockTokens);
    return reply;
  }
  void Fill(const LeaseId& lease, SliceKind kind, int64_t from = 0) {
    for (int64_t layer = 0; layer < HashModel::kLayers; ++layer) {
      auto write = store_->BeginWrite(lease, layer, from, 10, kind);
      ASSERT_TRUE(write.ok()) << write.status();
      EXPECT_TRUE(write->Commit().Wait().ok());
    }
  }
};

TEST_F(DecodeServiceX, AsksForXOfThePromptWithoutWhichTheLeaseIsNotComplete) {
  for (const std::optional<int> chain_has : {std::optional<int>(), std::optional<int>(10)}) {
    const auto reply = Reserve(10, 20, chain_has);
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->x_tokens(), 10);
    EXPECT_EQ(reply->kv_from(), 0);
    const LeaseId lease = LeaseFromProto(reply->lease());
    const Event complete = store_->Complete(lease);
    Fill(lease, SliceKind::kKv);
    EXPECT_FALSE(complete.fired());
    Fill(lease, SliceKind::kX);
    EXPECT_TRUE(complete.fired());
  }
}

TEST_F(DecodeServiceX, AsksForNoneWhereTheChainHasNotThatOfTheWholePrompt) {
  for (const int chain_has : {0, 9}) {
    const auto reply = Reserve(10, 20, chain_has);
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->x_tokens(), 0);
    const LeaseId lease = LeaseFromProto(reply->lease());
    Fill(lease, SliceKind::kKv);
    EXPECT_TRUE(store_->Complete(lease).fired());
  }
}

// Sequences that ended have left it beside their KV, or have not.
TEST_F(DecodeServiceX, OfAChainsRestAsksForXWhereWhatIsKnownHasIt) {
  for (const bool kept_with_x : {false, true}) {
    const v1::ReserveReply reply = ReserveRest(kept_with_x ? 4 : 5, kept_with_x);
    EXPECT_EQ(reply.x_tokens(), kept_with_x ? kKvBlockTokens + 10 : 0);
    EXPECT_EQ(reply.kv_from(), 0);
    EXPECT_FALSE(reply.has_lost_recompute_s()) << "nobody knows what is lost";
  }
}

// Which loses a millisecond a step for each token of a prompt without X, and wants X of some prompts alone.
class DecodeServiceXThatIsLost : public DecodeServiceX {
 protected:
  DecodeServiceXThatIsLost()
      : DecodeServiceX([this](int64_t) { return wants_x_ ? std::optional<int64_t>(0) : std::nullopt; },
                       [](int64_t prompt) { return 1e-3 * static_cast<double>(prompt); }) {}
  std::atomic<bool> wants_x_{true};
};

TEST_F(DecodeServiceXThatIsLost, OfAChainsRestSaysWhatStepsLoseWhereWhatIsKnownHasNone) {
  EXPECT_DOUBLE_EQ(ReserveRest(5, /*kept_with_x=*/false).lost_recompute_s(), 1e-3 * (kKvBlockTokens + 10));
  EXPECT_FALSE(ReserveRest(4, /*kept_with_x=*/true).has_lost_recompute_s());
  EXPECT_FALSE(Reserve(10, 20)->has_lost_recompute_s()) << "X comes";
  EXPECT_FALSE(Reserve(10, 20, 0)->has_lost_recompute_s()) << "the chain has none, so nothing would bring it";
  wants_x_ = false;
  EXPECT_FALSE(ReserveRest(6, /*kept_with_x=*/false).has_lost_recompute_s()) << "X of it would not come in any case";
}

// Which would recompute the first 6 tokens of any prompt of 10.
class DecodeServiceXInsteadOfKv : public DecodeServiceX {
 protected:
  DecodeServiceXInsteadOfKv() : DecodeServiceX([](int64_t prompt) { return prompt - 4; }) {}
};

TEST_F(DecodeServiceXInsteadOfKv, SaysFromWhereOnKvIsNeededAndWaitsForNoOther) {
  const auto reply = Reserve(10, 20);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->x_tokens(), 10);
  EXPECT_EQ(reply->kv_from(), 6);
  const LeaseId lease = LeaseFromProto(reply->lease());
  const Event complete = store_->Complete(lease);
  Fill(lease, SliceKind::kX);
  EXPECT_FALSE(complete.fired());
  Fill(lease, SliceKind::kKv, 6);
  EXPECT_TRUE(complete.fired());
}

// Which wants no X of short prompts.
class DecodeServiceXOfSome : public DecodeServiceX {
 protected:
  DecodeServiceXOfSome()
      : DecodeServiceX([](int64_t prompt) { return prompt > 8 ? std::optional<int64_t>(0) : std::nullopt; }) {}
};

TEST_F(DecodeServiceXOfSome, AsksForXOfThosePromptsAloneThatItIsWorthFor) {
  const auto with = Reserve(10, 20), without = Reserve(8, 20);
  ASSERT_TRUE(with.ok() && without.ok());
  EXPECT_EQ(with->x_tokens(), 10);
  EXPECT_EQ(without->x_tokens(), 0);
}

TEST_F(DecodeServiceXInsteadOfKv, NeedsAllOfItWhereXDoesNotCome) {
  const auto reply = Reserve(10, 20, 9);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->x_tokens(), 0);
  EXPECT_EQ(reply->kv_from(), 0);
  const LeaseId lease = LeaseFromProto(reply->lease());
  Fill(lease, SliceKind::kKv);
  EXPECT_TRUE(store_->Complete(lease).fired());
}

TEST_F(DecodeServiceTcp, StreamsTheTokensAndGivesTheLeaseBack) {
  DecodeSequence sequence = MakeHashSequence(*store_, 3, 300, 40);
  FillHashKv(*store_, sequence);
  EXPECT_EQ(*Generate(ToProto(sequence)), ExpectedTokens(sequence));
  EXPECT_EQ(store_->stats().used_bytes, 0);
  EXPECT_EQ(Generate(ToProto(sequence)).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(DecodeServiceTcp, CarriesSamplingLogprobsAndStopIds) {
  DecodeSequence sequence = MakeHashSequence(*store_, 4, 20, 30);
  sequence.sampling.temperature = 0.9f;
  sequence.sampling.top_k = 20;
  sequence.sampling.seed = 77;
  sequence.stop_ids = {ExpectedTokens(sequence)[7]};
  v1::DecodeRequest request = ToProto(sequence);
  request.mutable_sampling()->set_temperature(0.9f);
  request.mutable_sampling()->set_top_k(20);
  request.mutable_sampling()->set_seed(77);
  request.mutable_sampling()->set_logprobs(1);
  FillHashKv(*store_, sequence);
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, request);
  std::vector<int32_t> ids;
  for (v1::DecodeReply reply; reader->Read(&reply);) {
    for (const v1::SampledToken& token : reply.tokens()) {
      ids.push_back(token.id());
      ASSERT_GE(token.logprobs().top_size(), 2);
      EXPECT_EQ(token.logprobs().top(0).id(), token.id());
    }
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(ids, ExpectedTokens(sequence));
}

TEST_F(DecodeServiceTcp, CarriesBiasesAndRules) {
  DecodeSequence sequence = MakeHashSequence(*store_, 14, 20, 30);
  const std::vector<int32_t> free = ExpectedTokens(sequence);
  sequence.sampling.logit_bias = {{free[2], -100}, {free[3], 0.5f}};
  sequence.rules = {.min_tokens = 25, .end_ids = {free[1]}, .bad_ids = {{free[0]}, {sequence.output_ids[0], free[4]}}};
  v1::DecodeRequest request = ToProto(sequence);
  for (const auto& [id, bias] : sequence.sampling.logit_bias) {
    (*request.mutable_sampling()->mutable_logit_bias())[id] = bias;
  }
  request.mutable_rules()->set_min_tokens(25);
  request.mutable_rules()->add_end_ids(free[1]);
  for (const std::vector<int32_t>& bad : sequence.rules.bad_ids) {
    request.mutable_rules()->add_bad_ids()->mutable_ids()->Add(bad.begin(), bad.end());
  }
  FillHashKv(*store_, sequence);
  EXPECT_EQ(*Generate(request), ExpectedTokens(sequence));
}

TEST_F(DecodeServiceTcp, AClientThatGoesAwayEndsItsSequence) {
  const DecodeSequence waiting = MakeHashSequence(*store_, 5, 20, 100);
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, ToProto(waiting));
  AwaitCall();
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  AwaitNoLeases();
}

TEST_F(DecodeServiceTcp, AReleasedLeaseEndsTheCallThatWaitsForIt) {
  const DecodeSequence waiting = MakeHashSequence(*store_, 6, 20, 100);
  absl::Status end;
  std::thread caller([&] { end = Generate(ToProto(waiting)).status(); });
  AwaitCall();
  store_->Release(waiting.lease);
  caller.join();
  // NOT_FOUND where the call had come in, but had not yet looked at the lease.
  EXPECT_TRUE(absl::IsCancelled(end) || absl::IsNotFound(end)) << end;
}

TEST_F(DecodeServiceTcp, NothingIsLeftOfAnEpochThatEnded) {
  const DecodeSequence waiting = MakeHashSequence(*store_, 6, 20, 100);
  const absl::StatusOr<v1::ReserveReply> idle = Reserve(10, 20);
  ASSERT_TRUE(idle.ok());
  absl::Status end;
  std::thread caller([&] { end = Generate(ToProto(waiting)).status(); });
  AwaitCall();
  store_->BeginEpoch(1);
  service_->CancelAll();
  caller.join();
  EXPECT_FALSE(end.ok());
  EXPECT_EQ(store_->stats().leases, 0);
  EXPECT_TRUE(absl::IsNotFound(Renew(idle->lease())));
  // Who has not heard of the new epoch gets no memory of it.
  EXPECT_TRUE(absl::IsUnavailable(Reserve(10, 20).status()));
  const absl::StatusOr<LeaseId> fresh = store_->Reserve({.prompt_tokens = 10, .total_tokens = 20});
  ASSERT_TRUE(fresh.ok());
  EXPECT_EQ(fresh->epoch, 1u);
}

TEST_F(DecodeServiceTcp, ADrainingWorkerTakesNothingNewAndFinishesWhatRuns) {
  const DecodeSequence sequence = MakeHashSequence(*store_, 7, 20, 100);
  absl::StatusOr<std::vector<int32_t>> ids = std::vector<int32_t>();
  std::thread caller([&] { ids = Generate(ToProto(sequence)); });
  AwaitCall();
  std::thread drainer([&] { EXPECT_TRUE(server_->Drain(absl::Minutes(1))); });
  EXPECT_TRUE(testing::Await("the drain has closed the gate", [&] { return server_->gate().closed(); }));
  const absl::StatusCode refused = Reserve(1, 2).status().code();
  EXPECT_EQ(refused, absl::StatusCode::kUnavailable);
  FillHashKv(*store_, sequence);
  caller.join();
  drainer.join();
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(*ids, ExpectedTokens(sequence));
}

// In one process without buffers between: a write is done when the reader reads, so a slow reader is really slow.
class DecodeServiceSlowReader : public DecodeServiceTest {
 protected:
  DecodeServiceSlowReader() {
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub_ = v1::Decode::NewStub(server_->InProcessChannel({}));
  }
  ~DecodeServiceSlowReader() override {
    server_->Shutdown();
    server_ = nullptr;
  }
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Decode::Stub> stub_;
};

TEST_F(DecodeServiceSlowReader, TokensNotTakenAreMergedAndNoneIsLost) {
  const DecodeSequence sequence = MakeHashSequence(*store_, 8, 20, 200);
  FillHashKv(*store_, sequence);
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, ToProto(sequence));
  AwaitNoLeases();  // the sequence has ended, and nobody has read anything
  std::vector<int32_t> ids;
  int messages = 0;
  for (v1::DecodeReply reply; reader->Read(&reply); ++messages) {
    for (const v1::SampledToken& token : reply.tokens()) ids.push_back(token.id());
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(ids, ExpectedTokens(sequence));
  EXPECT_LE(messages, 10);
}

TEST_F(DecodeServiceSlowReader, AStalledStreamIsCancelledAndItsLeaseFreed) {
  const DecodeSequence sequence = MakeHashSequence(*store_, 9, 20, 30);
  FillHashKv(*store_, sequence);
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, ToProto(sequence));
  AwaitNoLeases();
  for (int i = 0; i < 6; ++i) {  // four looks fit into the timeout
    clock_.AwaitWaiters(1);
    clock_.Advance(absl::Seconds(15));
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

}  // namespace
}  // namespace runahead
