// The orders to one worker in one epoch: numbered, kept until the worker has them, and sent again over the stream that
// follows one that broke.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/base/mutex.h"
#include "runahead/v1/worker.pb.h"
#include "server/base/replay.h"
#include "server/router/sequencer.h"

namespace runahead {

// Thread-safe. While no stream carries it, orders are kept for the next one. The log is as long as what a worker is
// asked for between two pings, or while its stream is being resumed: the sequencer starts nothing there meanwhile.
class OrderLog final : public CommandSink {
 public:
  void Write(v1::ControlCommand command) override RUNAHEAD_EXCLUDES(mu_);

  // Orders go out by `stream` from now on. The worker has received the first `received`; the later ones are sent again,
  // in order. False where it cannot have received so many, or had received more: then nothing is sent.
  bool CarryBy(std::shared_ptr<CommandSink> stream, uint64_t received) RUNAHEAD_EXCLUDES(mu_);
  // The stream broke.
  void Interrupt() RUNAHEAD_EXCLUDES(mu_);
  // The worker has received the first `received`.
  void Acknowledge(uint64_t received) RUNAHEAD_EXCLUDES(mu_);

 private:
  Mutex mu_;
  Outbox<v1::ControlCommand> orders_ RUNAHEAD_GUARDED_BY(mu_);
  std::shared_ptr<CommandSink> stream_ RUNAHEAD_GUARDED_BY(mu_);  // null while there is none
};

}  // namespace runahead
