// The edge contract's world of edges over messages.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <utility>

#include "tests/worker/link/edge_contract.h"
#include "tests/worker/link/new_engine.h"
#include "worker/link/message/message_edge.h"

namespace runahead::testing {

// Three engines in this process, over real connections.
class MessageWorld final : public EdgeWorld {
 public:
  using NewStaging = std::function<std::unique_ptr<EdgeStaging>(int process)>;

  // `staging` is kept, with what it holds: the devices, say.
  explicit MessageWorld(
      NewStaging staging = [](int) { return nullptr; },
      const std::function<std::unique_ptr<MessageEngine>()>& new_engine = NewEngine)
      : staging_(std::move(staging)) {
    for (int i = 0; i < 3; ++i) {
      engines_[i] = new_engine();
      factories_[i] = std::make_unique<MessageEdgeFactory>(*engines_[i], MessageEdgeOptions{.staging = staging_(i)});
      ids_[i] = engines_[i]->self();
    }
  }
  ~MessageWorld() override {
    for (int i = 0; i < 3; ++i) Kill(i);
  }
  EdgeFactory& factory(int process) override { return *factories_[process]; }
  void Kill(int process) override {
    factories_[process].reset();
    engines_[process].reset();
  }
  size_t live_jobs(int process, int peer) override { return factories_[process]->live_jobs(ids_[peer]); }
  MessageEngine& engine(int process) { return *engines_[process]; }

 private:
  const NewStaging staging_;
  std::array<std::unique_ptr<MessageEngine>, 3> engines_;
  std::array<std::unique_ptr<MessageEdgeFactory>, 3> factories_;
  std::array<PeerId, 3> ids_;
};

}  // namespace runahead::testing
