// CUDA graphs of the steps that come again: one launch instead of hundreds.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace runahead {

// Something that enqueues on a stream.
struct CudaLaunch {
  const char* name;  // of the op
  std::function<cudaError_t()> run;
};

// Graphs of one stream by what their launches are (the bytes of BoundLaunch::AppendKey, one op after the other). Used
// by one thread at a time.
class StepGraphs {
 public:
  // Steps kept: a batch size and a bucket of attention lengths have one each.
  static constexpr size_t kMost = 64;

  StepGraphs() = default;
  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  // Runs `launches`, which enqueue on `stream`. The first time as they are (libraries load what they need then), the
  // second time recorded as a graph, from then on the graph alone. What cannot be recorded runs as it is always.
  void Run(cudaStream_t stream, const std::string& key, const std::vector<CudaLaunch>& launches);

 private:
  struct Entry {
    std::string key;
    bool recordable = true;
    cudaGraphExec_t graph = nullptr;
  };
  Entry* Find(const std::string& key);
  cudaGraphExec_t Record(cudaStream_t stream, const std::vector<CudaLaunch>& launches);

  std::list<Entry> entries_;  // the last used first
  absl::flat_hash_map<std::string, std::list<Entry>::iterator> by_key_;
  bool told_ = false;  // that one could not be recorded
};

}  // namespace runahead
