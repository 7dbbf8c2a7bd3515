// The edge contract's world of edges over the loopback network.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/testing/loopback.h"
#include "tests/worker/link/edge_contract.h"

namespace runahead::testing {

// Three processes whose frames arrive at once.
class LoopbackWorld final : public EdgeWorld {
 public:
  using Wrap = std::function<std::unique_ptr<EdgeFactory>(std::unique_ptr<EdgeFactory>)>;

  // `wrap` makes what a process uses of what the network gives it.
  explicit LoopbackWorld(const Wrap& wrap = [](std::unique_ptr<EdgeFactory> factory) { return factory; }) {
    for (uint64_t i = 0; i < 3; ++i) factories_.push_back(wrap(network_->Join({"process", 100 + i})));
  }
  EdgeFactory& factory(int process) override { return *factories_[process]; }
  void Kill(int process) override { network_->Kill(factories_[process]->self()); }
  size_t live_jobs(int process, int peer) override {
    return network_->live_jobs(factories_[process]->self(), factories_[peer]->self());
  }

 private:
  std::shared_ptr<LoopbackNetwork> network_ = LoopbackNetwork::Create(LoopbackNetwork::Delivery::kImmediate);
  std::vector<std::unique_ptr<EdgeFactory>> factories_;
};

}  // namespace runahead::testing
