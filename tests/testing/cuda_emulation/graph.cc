// Stream capture and graphs. A graph is a list: one stream is captured, and nothing else can join.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "tests/testing/cuda_emulation/runtime.h"

namespace runahead::cuda_emulation {
namespace {

struct Graph {
  std::vector<Operation> operations;
};

struct GraphExec {
  Mutex running;  // one replay at a time, as CUDA's
  Mutex mu;
  std::shared_ptr<const Graph> graph RUNAHEAD_GUARDED_BY(mu);
};

struct Graphs {
  HandleTable<cudaGraph_t, const Graph> graphs{"a graph"};
  HandleTable<cudaGraphExec_t, GraphExec> execs{"an executable graph"};
  Mutex mu;
  std::vector<std::shared_ptr<Capture>> captures RUNAHEAD_GUARDED_BY(mu);  // that have not ended
};

Graphs& TheGraphs() {
  static auto& graphs = *new Graphs;
  return graphs;
}

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

// Whether `capture` forbids this thread what is unsafe.
bool Forbids(const Capture& capture) {
  if (thread_mode == cudaStreamCaptureModeRelaxed || capture.mode == cudaStreamCaptureModeRelaxed) return false;
  if (capture.thread == std::this_thread::get_id()) return true;
  return thread_mode == cudaStreamCaptureModeGlobal && capture.mode == cudaStreamCaptureModeGlobal;
}

}  // namespace

bool SpoilForbiddingCaptures() {
  HiddenFromTsan hidden;
  MutexLock lock(TheGraphs().mu);
  bool any = false;
  for (const auto& capture : TheGraphs().captures) {
    if (!Forbids(*capture)) continue;
    capture->spoiled = true;
    any = true;
  }
  return any;
}

cudaError_t Spoil(const std::shared_ptr<Capture>& capture, cudaError_t error) {
  if (capture == nullptr) return cudaSuccess;
  capture->spoiled = true;
  return error;
}

std::shared_ptr<Capture> StreamState::capture() {
  MutexLock lock(mu_);
  return capture_;
}

cudaError_t StreamState::BeginCapture(cudaStreamCaptureMode mode) {
  MutexLock lock(mu_);
  if (capture_ != nullptr) return Spoil(capture_, cudaErrorIllegalState);
  capture_ = std::make_shared<Capture>();
  capture_->mode = mode;
  capture_->thread = std::this_thread::get_id();
  MutexLock graphs_lock(TheGraphs().mu);
  TheGraphs().captures.push_back(capture_);
  return cudaSuccess;
}

cudaError_t StreamState::EndCapture(std::vector<Operation>* operations) {
  MutexLock lock(mu_);
  if (capture_ == nullptr) return cudaErrorIllegalState;
  if (capture_->mode != cudaStreamCaptureModeRelaxed && capture_->thread != std::this_thread::get_id()) {
    return Spoil(capture_, cudaErrorStreamCaptureWrongThread);
  }
  const std::shared_ptr<Capture> capture = std::exchange(capture_, nullptr);
  {
    MutexLock graphs_lock(TheGraphs().mu);
    std::erase(TheGraphs().captures, capture);
  }
  if (capture->spoiled) return cudaErrorStreamCaptureInvalidated;
  *operations = std::move(capture->operations);
  return cudaSuccess;
}

int LiveGraphs() {
  return TheGraphs().graphs.size();
}
int LiveGraphExecs() {
  return TheGraphs().execs.size();
}

namespace {

// Whether an instance of `old` can take what `fresh` does: the same kernels and kinds in the same order.
cudaGraphExecUpdateResult CompareGraphs(const Graph& old, const Graph& fresh) {
  if (old.operations.size() != fresh.operations.size()) return cudaGraphExecUpdateErrorTopologyChanged;
  for (size_t i = 0; i < old.operations.size(); ++i) {
    if (old.operations[i].kind != fresh.operations[i].kind) return cudaGraphExecUpdateErrorNodeTypeChanged;
    if (old.operations[i].kernel != fresh.operations[i].kernel) return cudaGraphExecUpdateErrorFunctionChanged;
  }
  return cudaGraphExecUpdateSuccess;
}

}  // namespace
}  // namespace runahead::cuda_emulation

using runahead::MutexLock;
using namespace runahead::cuda_emulation;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return Api("cudaStreamBeginCapture", [&] {
    if (stream == nullptr) return cudaErrorStreamCaptureUnsupported;
    return FindStream(stream)->BeginCapture(mode);
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* pGraph) {
  return Api("cudaStreamEndCapture", [&] {
    *pGraph = nullptr;
    auto graph = std::make_shared<Graph>();
    const cudaError_t error = FindStream(stream)->EndCapture(&graph->operations);
    if (error == cudaSuccess) *pGraph = TheGraphs().graphs.Add(graph);
    return error;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* pCaptureStatus) {
  return Api("cudaStreamIsCapturing", [&] {
    const auto capture = FindStream(stream)->capture();
    *pCaptureStatus = capture == nullptr  ? cudaStreamCaptureStatusNone
                      : !capture->spoiled ? cudaStreamCaptureStatusActive
                                          : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
  });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return Api("cudaThreadExchangeStreamCaptureMode", [&] {
    std::swap(*mode, thread_mode);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* pGraphExec, cudaGraph_t graph, unsigned long long) {
  return Api("cudaGraphInstantiate", [&] {
    auto exec = std::make_shared<GraphExec>();
    {
      MutexLock lock(exec->mu);
      exec->graph = TheGraphs().graphs.Find(graph);
    }
    *pGraphExec = TheGraphs().execs.Add(exec);
    CountGraphInstantiation();
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t hGraphExec, cudaGraph_t hGraph,
                                cudaGraphExecUpdateResultInfo* resultInfo) {
  return Api("cudaGraphExecUpdate", [&] {
    const auto exec = TheGraphs().execs.Find(hGraphExec);
    const auto graph = TheGraphs().graphs.Find(hGraph);
    MutexLock lock(exec->mu);
    const cudaGraphExecUpdateResult result = CompareGraphs(*exec->graph, *graph);
    *resultInfo = {result, nullptr, nullptr};
    if (result != cudaGraphExecUpdateSuccess) return cudaErrorGraphExecUpdateFailure;
    exec->graph = graph;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream) {
  return Api("cudaGraphLaunch", [&] {
    const auto exec = TheGraphs().execs.Find(graphExec);
    const auto state = FindStream(stream);
    std::shared_ptr<const Graph> graph;
    {
      MutexLock lock(exec->mu);
      graph = exec->graph;  // a later update changes later launches only
    }
    if (state->capture() == nullptr) CountGraphLaunch();
    return state->Submit({Operation::Kind::kGraph, nullptr, [exec, graph] {
                            MutexLock lock(exec->running);
                            for (const Operation& operation : graph->operations) operation.run();
                          }});
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return Api("cudaGraphDestroy", [&] {
    TheGraphs().graphs.Remove(graph);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graphExec) {
  return Api("cudaGraphExecDestroy", [&] {
    TheGraphs().execs.Remove(graphExec);
    return cudaSuccess;
  });
}
