// The last worker of a line, held at the beginning of a pass, so that what is started meanwhile waits behind it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/testing/chain_fixture.h"

namespace runahead {

class HeldWorker {
 public:
  static constexpr JobId kFirst = 1000;  // the one that it is held in, of a token

  // `max_tokens`: of the longest prompt, all of whose layers memory holds.
  HeldWorker(const LoadedModel& loaded, int64_t max_tokens, int width = 1)
      : chain(loaded, width, max_tokens), index(width - 1), worker(chain.member(index)) {
    worker.trace.HoldAt(TracePoint::kQkvBegin);
    chain.Start(kFirst, index, {0, 1}, {1});
    worker.trace.Await(kFirst, 0, TracePoint::kQkvBegin);
  }

  // Of this worker alone.
  PrefillJob Job(JobId job, const std::vector<int32_t>& ids, const SamplingOptions& sampling) {
    const auto tokens = static_cast<int64_t>(ids.size());
    return chain.JobOf(job, index, 0, {0, tokens}, ids, sampling, true, absl::InfiniteFuture());
  }
  void Start(PrefillJob job) { worker.stage->Start(std::move(job)); }
  // It goes on.
  void Release() { worker.trace.Release(); }
  // It goes on as far as the end of the first layer of a pass that `job` is in.
  void ReleaseUpTo(JobId job) {
    worker.trace.HoldAt(TracePoint::kLayerEnd, job);
    worker.trace.Await(job, 0, TracePoint::kLayerEnd);
  }

  TestChain chain;
  const int index;
  ChainMember& worker;
};

}  // namespace runahead
