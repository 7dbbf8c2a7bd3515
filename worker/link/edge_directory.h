// Which edges a process has over an engine, whatever moves their bytes: opening, what comes before that, and death.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "server/base/log_later.h"
#include "server/base/rare_line.h"
#include "worker/link/edge_core.h"
#include "worker/link/ended_generations.h"
#include "worker/link/message_engine.h"

namespace runahead {

// This side of an edge. Both are null where it is not open.
struct EdgeEnd {
  std::shared_ptr<EdgeCore> core;
  std::shared_ptr<EdgeWire> wire;  // the core's
};

// Thread-safe. What engine callbacks share with a factory of edges; outlives it while callbacks are under way. The
// engine is used until Stop.
class EdgeDirectory : public std::enable_shared_from_this<EdgeDirectory> {
 public:
  using Delivery = std::function<void(EdgeWire&)>;

  explicit EdgeDirectory(MessageEngine& engine) : engine_(&engine) {}

  // The end to `peer`, made by `make` (short, calls nothing here) the first time. UNAVAILABLE when it is dead or was
  // closed.
  absl::StatusOr<std::shared_ptr<EdgeCore>> Open(const PeerId& peer, const std::function<EdgeEnd()>& make)
      RUNAHEAD_EXCLUDES(mu_);
  // Runs `delivery` on the wire to `from`: now, or when it is opened here. One thread's for one end keep their order.
  void Deliver(const PeerKey& from, Delivery delivery) RUNAHEAD_EXCLUDES(mu_);
  // As MessageEngine::Send; once the edge is dead `done` runs with UNAVAILABLE.
  void Send(const PeerId& peer, MessageKind kind, std::string header, Outbound bytes, MessageEngine::Done done)
      RUNAHEAD_EXCLUDES(mu_);
  // As MessageEngine::Break.
  void Break(const PeerId& peer, const absl::Status& why) RUNAHEAD_EXCLUDES(mu_);
  // Kills the edge to `peer` and closes the connection; nothing holds a buffer of it when this returns.
  void Close(const PeerId& peer) RUNAHEAD_EXCLUDES(mu_);
  // Closes all edges; nothing here calls the engine afterwards.
  void Stop() RUNAHEAD_EXCLUDES(mu_);
  size_t live_jobs(const PeerId& peer) const RUNAHEAD_EXCLUDES(mu_);

 private:
  // Delivers what came for `end` before it was open, and what comes while that is done.
  void DeliverStash(const PeerKey& key, const EdgeEnd& end) RUNAHEAD_EXCLUDES(mu_);
  EdgeEnd Find(const PeerId& peer) const RUNAHEAD_EXCLUDES(mu_);

  struct Side {
    PeerId peer;
    EdgeEnd end;
    std::deque<Delivery> stash;  // until it is opened
    bool opening = false;        // `end` is getting what was stashed
  };

  MessageEngine* const engine_;
  mutable Mutex mu_;
  bool stopped_ RUNAHEAD_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<PeerKey, Side> sides_ RUNAHEAD_GUARDED_BY(mu_);
  std::deque<PeerKey> unopened_ RUNAHEAD_GUARDED_BY(mu_);
  RareLine flood_{absl::Seconds(10)};                 // who floods this process must not flood its log, too
  EndedGenerations closed_ RUNAHEAD_GUARDED_BY(mu_);  // of the ends that were here
};

}  // namespace runahead
