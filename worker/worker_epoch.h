// What of a worker belongs to one control stream: links, the prefill role, and the link's side of hand-off. When the
// stream ends, all of it ends, and the next one is made; model, device, KV arena and decode's engine stay.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/peer_comm.h"
#include "runahead/v1/worker.pb.h"
#include "server/base/cluster_key.h"
#include "server/base/metrics.h"
#include "worker/decode_role.h"
#include "worker/link/command_queue.h"
#include "worker/link/message_engine.h"
#include "worker/link/tcp/link_tls.h"
#include "worker/options.h"
#include "worker/prefill_role.h"

namespace runahead {

// Which model a worker has, for the router to compare: each in hexadecimal digits. Two that agree in `files` and
// `weights` compute the same.
struct ModelFingerprints {
  std::string files;    // ModelFile::fingerprint
  std::string weights;  // WeightsHash
  std::string tokenizer, chat_template;
};

// What every epoch of a process uses; outlives them.
struct EpochParts {
  const WorkerOptions& options;
  const ClusterKey& key;
  std::shared_ptr<const LinkTls> link_tls;  // null: links are not encrypted
  std::string link_host;
  uint64_t incarnation = 0;
  Device& device;
  PeerCommFactory* peer_comms = nullptr;  // null on the CPU
  std::shared_ptr<const Model> model;
  ModelFingerprints fingerprints;
  std::shared_ptr<Buffer> prefill_memory;  // null unless it prefills
  DecodeRole* decode = nullptr;            // null unless it decodes
  MetricRegistry& metrics;
  std::function<void(v1::ControlReport)> report;
  std::shared_ptr<GrammarSource> grammars;
  PrefillProgress prefill_progress = {};
  std::shared_ptr<ProgressMeter> links_progress = std::make_shared<ProgressMeter>();
};

// Made and destroyed by one thread, which also gives it the router's commands.
class WorkerEpoch {
 public:
  static absl::StatusOr<std::unique_ptr<WorkerEpoch>> Begin(const EpochParts& parts, uint32_t epoch);
  // Closes the links, ends the jobs and leases, and waits until nothing of them holds memory.
  ~WorkerEpoch();

  // What the router is told of this worker.
  v1::Capabilities capabilities() const;

  // As ControlHandler's.
  void OnFormLine(const v1::FormLine& line);
  void OnStart(const v1::StartJob& start);
  void OnCancel(uint64_t job);
  void OnRelease(const v1::LeaseId& lease);
  void OnMove(const v1::MoveSequence& move);
  void OnPing();

 private:
  explicit WorkerEpoch(const EpochParts& parts) : parts_(parts) {}

  const EpochParts& parts_;
  std::shared_ptr<CommandQueue> link_commands_;
  std::unique_ptr<MessageEngine> engine_;
  std::unique_ptr<PrefillRole> prefill_;  // null unless it prefills
};

}  // namespace runahead
