// An entry of the worker list, and a worker that has joined.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "runahead/v1/kept.grpc.pb.h"
#include "runahead/v1/worker.grpc.pb.h"
#include "server/base/hearing.h"
#include "server/router/cancel_token.h"
#include "server/router/clock_offset.h"

namespace runahead {

// One entry of the worker list: a worker, or all that a name service knows of a role. Once the list is spread over
// seats (SeatsFor), a seat: its address comes and goes with the names where it has a service.
struct WorkerSpec {
  std::string role;          // prefill, decode or both
  std::string address;       // host:port; empty where it has a service, and while a seat is vacant
  std::string service = {};  // name of SRV records; empty where it has an address

  bool prefills() const { return role != "decode"; }
  bool decodes() const { return role != "prefill"; }
};

// A worker of one incarnation, from when it joins until it is lost.
struct LiveWorker {
  int index = 0;        // its seat in the worker list
  std::string address;  // host:port, as listed
  v1::Capabilities capabilities;
  std::shared_ptr<v1::Decode::StubInterface> decode;                    // null unless it decodes
  std::shared_ptr<v1::KeptKv::StubInterface> kept;                      // likewise
  std::shared_ptr<CancelToken> lost = std::make_shared<CancelToken>();  // cancelled with UNAVAILABLE when it is lost
  // Set before `lost` is cancelled where it stopped because it was asked to, or was let go: that is no death.
  std::shared_ptr<std::atomic<bool>> let_go = std::make_shared<std::atomic<bool>>(false);
  // Nothing new is planned on it, and what it decodes is to go to others: it is to stop, or its name is gone.
  std::shared_ptr<std::atomic<bool>> drains = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<PeerClock> clock = std::make_shared<PeerClock>();  // the worker's, against the router's
  Hearing* hearing = &AlwaysHears();  // how far the router is with what the worker says; outlives it
};

}  // namespace runahead
