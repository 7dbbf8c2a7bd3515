// A router between fakes whose requests end badly: what they held must be free afterwards.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "tests/testing/router_fixture.h"

namespace runahead::testing {

class FaultsFixture : public RouterFixture {
 protected:
  // A prompt on both prefill workers.
  v1::GenerateRequest Chain(int max_tokens = 50) {
    v1::GenerateRequest request = Ids(10, max_tokens);
    request.mutable_experiment()->set_width(2);
    return request;
  }
  void HoldPrefill(bool first_token, bool done) {
    for (auto& worker : prefill_) {
      worker->Change([&](FakeBehaviour& b) {
        b.first_token = first_token;
        b.done = done;
      });
    }
  }
  uint64_t Job() { return prefill_[0]->AwaitStarts(1).at(0).job(); }
  // Everything that a request may hold is free again, and requests are answered.
  void ExpectAllFreeAndWorking(int prefill = 2) {
    for (auto* workers : {&prefill_, &decode_}) {
      for (auto& worker : *workers) worker->AwaitRouter();  // and so the stream before it, if any, is known to be over
    }
    for (auto& worker : decode_) worker->AwaitLeases(0);
    AwaitReady(prefill, static_cast<int>(decode_.size()));
    HoldPrefill(true, true);
    for (auto& worker : decode_) worker->Change([](FakeBehaviour& b) { b = FakeBehaviour(); });
    const Got got = Generate(Chain(3));
    EXPECT_TRUE(got.status.ok()) << got.status;
    for (auto& worker : decode_) worker->AwaitLeases(0);
  }
  // The worker is killed and comes back at its address as a new incarnation.
  void Restart(std::unique_ptr<FakeWorker>& worker, v1::Capabilities able) {
    const std::string address = worker->address();
    worker.reset();
    worker = std::make_unique<FakeWorker>(std::move(able), address);
  }
};

}  // namespace runahead::testing
