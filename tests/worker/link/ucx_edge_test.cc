#include "worker/link/ucx_edge.h"

#include <array>
#include <string>

#include "server/base/random.h"
#include "tests/worker/link/edge_contract.h"
#include "tests/worker/link/ucx_test_main.h"
#include "worker/link/ucx_engine.h"

namespace runahead {
namespace {

using ::runahead::testing::EdgeContract;
using ::runahead::testing::EdgeWorld;
using ::runahead::testing::Pattern;
using ::runahead::testing::Room;

// Three engines in this process.
class UcxWorld final : public EdgeWorld {
 public:
  explicit UcxWorld(const std::string& transports) {
    for (int i = 0; i < 3; ++i) {
      auto engine = UcxEngine::Start({RandomBits64(), transports});
      RUNAHEAD_CHECK(engine.ok());
      engines_[i] = *std::move(engine);
      factories_[i] = std::make_unique<UcxEdgeFactory>(*engines_[i]);
      ids_[i] = engines_[i]->self();
    }
  }
  ~UcxWorld() override {
    for (int i = 0; i < 3; ++i) Kill(i);
  }
  EdgeFactory& factory(int process) override { return *factories_[process]; }
  void Kill(int process) override {
    factories_[process].reset();
    engines_[process].reset();
  }
  size_t live_jobs(int process, int peer) override { return factories_[process]->live_jobs(ids_[peer]); }
  UcxEngine& engine(int process) { return *engines_[process]; }

 private:
  std::array<std::unique_ptr<UcxEngine>, 3> engines_;
  std::array<std::unique_ptr<UcxEdgeFactory>, 3> factories_;
  std::array<PeerId, 3> ids_;
};

INSTANTIATE_TEST_SUITE_P(BestTransport, EdgeContract,
                         ::testing::Values([] { return std::unique_ptr<EdgeWorld>(new UcxWorld("")); }));
INSTANTIATE_TEST_SUITE_P(Tcp, EdgeContract,
                         ::testing::Values([] { return std::unique_ptr<EdgeWorld>(new UcxWorld("tcp")); }));

TEST(UcxEdge, NamesTheTransportItTook) {
  UcxWorld world("tcp");
  const auto a = *world.factory(0).Open(world.factory(1).self());
  const auto b = *world.factory(1).Open(world.factory(0).self());
  a->Send({1, 0, 0}, Pattern(100'000, 1), Event());
  ASSERT_TRUE(b->Recv({1, 0, 0}, Room(100'000)).Wait(absl::Seconds(60)).ok());
  EXPECT_THAT(world.engine(0).Transport(world.factory(1).self()), ::testing::HasSubstr("tcp"));
}

TEST(UcxEdge, ADamagedAddressIsUnavailableAndHarmsNothing) {
  UcxWorld world("");
  for (const std::string& address :
       {std::string(), std::string("x"), std::string(300, 'y'), world.factory(1).self().address + "z"}) {
    const auto edge = world.factory(0).Open({address, RandomBits64()});
    if (!edge.ok()) continue;
    EXPECT_EQ((*edge)->Recv({1, 0, 0}, Room(1)).Wait(absl::Seconds(60)).code(), absl::StatusCode::kUnavailable);
  }
  const auto a = *world.factory(0).Open(world.factory(1).self());
  const auto b = *world.factory(1).Open(world.factory(0).self());
  a->Send({1, 0, 0}, Pattern(10, 1), Event());
  EXPECT_TRUE(b->Recv({1, 0, 0}, Room(10)).Wait(absl::Seconds(60)).ok());
}

TEST(UcxEdge, MessagesForAnotherIncarnationAreIgnored) {
  UcxWorld world("");
  const PeerId b = world.factory(1).self();
  // What `a` believes to be at b's address is a former life of it.
  const auto stale = *world.factory(0).Open({b.address, b.incarnation + 1});
  const Event small = stale->Send({1, 0, 0}, Pattern(10, 1), Event());
  const Event large = stale->Send({1, 1, 0}, Pattern(100'000, 1), Event());
  // Both were discarded there: the large one is given back without ever having been asked for.
  EXPECT_TRUE(small.Wait(absl::Seconds(60)).ok());
  EXPECT_TRUE(large.Wait(absl::Seconds(60)).ok());
  const auto back = *world.factory(1).Open(world.factory(0).self());
  const auto edge = *world.factory(0).Open(b);
  const Event got = back->Recv({1, 0, 0}, Room(20));
  edge->Send({1, 0, 0}, Pattern(20, 2), Event());
  EXPECT_TRUE(got.Wait(absl::Seconds(60)).ok()) << "a frame of the former life would have had another size";
}

}  // namespace
}  // namespace runahead
