#include "kernels/cuda/step_graphs.h"

#include <cstdio>

#include "kernels/cuda/cuda_status.h"

namespace runahead {
namespace {

void Destroy(cudaGraphExec_t graph) {
  if (graph != nullptr) CudaMust(cudaGraphExecDestroy(graph), "ending a graph");
}

}  // namespace

StepGraphs::~StepGraphs() {
  for (const Entry& entry : entries_) Destroy(entry.graph);
}

// Null the first time that the key is seen.
StepGraphs::Entry* StepGraphs::Find(const std::string& key) {
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    entries_.splice(entries_.begin(), entries_, found->second);
    return &entries_.front();
  }
  entries_.push_front({key});
  by_key_[key] = entries_.begin();
  if (entries_.size() > kMost) {
    // A graph that still runs is freed by CUDA when it is done.
    Destroy(entries_.back().graph);
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
  return nullptr;
}

// Null when something among the launches cannot be recorded.
cudaGraphExec_t StepGraphs::Record(cudaStream_t stream, const std::vector<CudaLaunch>& launches) {
  CudaMust(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "recording a graph");
  cudaError_t code = cudaSuccess;
  for (size_t i = 0; i < launches.size() && code == cudaSuccess; ++i) code = launches[i].run();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t made = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
  if (code == cudaSuccess) code = ended;
  if (code == cudaSuccess) code = cudaGraphInstantiate(&made, graph, 0);
  if (graph != nullptr) CudaMust(cudaGraphDestroy(graph), "ending a recorded graph");
  if (code == cudaSuccess) return made;
  cudaGetLastError();
  if (!told_) std::fprintf(stderr, "a step cannot be a CUDA graph, and runs as it is: %s\n", cudaGetErrorString(code));
  told_ = true;
  return nullptr;
}

void StepGraphs::Run(cudaStream_t stream, const std::string& key, const std::vector<CudaLaunch>& launches) {
  Entry* const entry = Find(key);
  if (entry != nullptr && entry->recordable && entry->graph == nullptr) {
    entry->graph = Record(stream, launches);
    entry->recordable = entry->graph != nullptr;
  }
  if (entry != nullptr && entry->graph != nullptr) {
    CudaMust(cudaGraphLaunch(entry->graph, stream), "launching a graph");
    return;
  }
  for (const CudaLaunch& launch : launches) CudaMust(launch.run(), launch.name);
}

}  // namespace runahead
