// NCCL and CUDA as far as a communicator sees them, inside one process, with faults on demand. It checks how it is
// called: one call at a time, none but Abort on what is not settled, everything ended.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/base/mutex.h"
#include "kernels/cuda/nccl_api.h"

namespace runahead::testing {

// Thread-safe. Two ranks of one id meet; the n-th send meets the n-th receive.
class FakeNccl final : public NcclApi {
 public:
  // What the next calls come to. Tests set them before, or while, links run.
  struct Faults {
    bool hold_init = false;       // communicators stay in progress
    bool fail_init = false;       // Init itself fails
    bool fail_joining = false;    // Init begins, and fails later
    bool hold_transfers = false;  // what is in a stream stays there
    bool hold_enqueue = false;    // Send and Recv stay in progress
    bool fail_send = false;       // Send itself fails
    bool hold_finalize = false;   // Finalize stays in progress
    bool fail_thread = false, fail_stream = false, fail_mark = false, fail_scratch = false;
  };

  ~FakeNccl() override {
    EXPECT_TRUE(comms_.empty()) << "a communicator was never ended";
    EXPECT_EQ(streams_, 0) << "a stream was never ended";
    EXPECT_EQ(marks_, 0) << "a mark was never ended";
    EXPECT_EQ(scratches_, 0) << "scratch memory was never ended";
  }

  void Set(const Faults& faults) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    faults_ = faults;
  }
  // An error comes up in the background of all communicators.
  void FailAll() RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    for (auto& [comm, state] : comms_) state.error = absl::UnavailableError("the network broke");
  }
  int count(const std::string& call) const RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return static_cast<int>(std::count(calls_.begin(), calls_.end(), call));
  }
  void Await(const std::string& call, int count) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (std::count(calls_.begin(), calls_.end(), call) < count) changed_.Wait(mu_);
  }

  std::string version() override { return "2.27.7"; }
  std::string gpu() override { return "GPU-1"; }
  absl::Status EnterThread() override { return May(&Faults::fail_thread, "thread"); }
  absl::StatusOr<std::string> NewId() override {
    MutexLock lock(mu_);
    std::string id = absl::StrCat("id ", ++next_);
    id.resize(128, '.');
    return id;
  }
  absl::StatusOr<Comm> Init(const std::string& id, int rank) override {
    if (const absl::Status status = May(&Faults::fail_init, "init"); !status.ok()) return status;
    MutexLock lock(mu_);
    Comm comm = Handle();
    CommState& state = comms_[comm];
    state.id = id;
    state.rank = rank;
    state.joining = true;
    if (faults_.fail_joining) state.error = absl::UnavailableError("the peer refused");
    return comm;
  }
  absl::StatusOr<bool> Settled(Comm comm) override {
    MutexLock lock(mu_);
    CommState& state = comms_.at(comm);
    if (!state.error.ok()) return absl::UnavailableError(state.error.message());
    const bool held = (state.joining && (faults_.hold_init || Other(state) == nullptr)) ||
                      (state.enqueuing && faults_.hold_enqueue) || (state.finalizing && faults_.hold_finalize);
    // A call takes a few looks to come to its end.
    if (held || state.looks++ < 2) return false;
    state.looks = 2;
    if (std::exchange(state.enqueuing, false)) Submit(state);
    state.joining = false;
    state.settled = true;
    return true;
  }
  absl::Status Send(Comm comm, const void* bytes, size_t size, Stream stream) override {
    if (const absl::Status status = May(&Faults::fail_send, absl::StrCat("send ", size)); !status.ok()) return status;
    return Transfer(comm, 0, const_cast<void*>(bytes), size, stream);
  }
  absl::Status Recv(Comm comm, void* into, size_t size, Stream stream) override {
    Log(absl::StrCat("recv ", size));
    return Transfer(comm, 1, into, size, stream);
  }
  absl::Status Finalize(Comm comm) override {
    Log("finalize");
    MutexLock lock(mu_);
    CommState& state = comms_.at(comm);
    EXPECT_TRUE(state.settled);
    state.settled = false;
    state.finalizing = true;
    state.looks = 0;
    return absl::OkStatus();
  }
  void Destroy(Comm comm) override {
    Log("destroy");
    MutexLock lock(mu_);
    EXPECT_TRUE(comms_.at(comm).finalizing && comms_.at(comm).settled);
    comms_.erase(comm);
  }
  void Abort(Comm comm) override {
    Log("abort");
    MutexLock lock(mu_);
    // Its kernels end.
    for (auto& [stream, state] : stream_states_) {
      if (state.comm == comm) state.done = state.submitted;
    }
    comms_.erase(comm);
  }

  absl::StatusOr<Stream> NewStream() override {
    if (const absl::Status status = May(&Faults::fail_stream, "stream"); !status.ok()) return status;
    MutexLock lock(mu_);
    ++streams_;
    const Stream stream = Handle();
    stream_states_[stream];
    return stream;
  }
  void EndStream(Stream stream) override {
    MutexLock lock(mu_);
    --streams_;
    EXPECT_EQ(stream_states_.at(stream).done, stream_states_.at(stream).submitted) << "a kernel runs still";
    stream_states_.erase(stream);
  }
  absl::StatusOr<Mark> Record(Stream stream) override {
    if (const absl::Status status = May(&Faults::fail_mark, "mark"); !status.ok()) return status;
    MutexLock lock(mu_);
    ++marks_;
    const Mark mark = Handle();
    mark_states_[mark] = {stream, stream_states_.at(stream).submitted};
    return mark;
  }
  absl::StatusOr<bool> Passed(Mark mark) override {
    MutexLock lock(mu_);
    if (!faults_.hold_transfers) Move();
    const auto& [stream, position] = mark_states_.at(mark);
    return stream_states_.at(stream).done >= position;
  }
  void EndMark(Mark mark) override {
    MutexLock lock(mu_);
    --marks_;
    mark_states_.erase(mark);
  }
  absl::StatusOr<void*> NewScratch(size_t bytes, Stream) override {
    if (const absl::Status status = May(&Faults::fail_scratch, "scratch"); !status.ok()) return status;
    MutexLock lock(mu_);
    ++scratches_;
    return static_cast<void*>(new char[bytes]());
  }
  void EndScratch(void* scratch, Stream) override {
    MutexLock lock(mu_);
    --scratches_;
    delete[] static_cast<char*>(scratch);
  }

 private:
  struct Operation {
    void* memory = nullptr;
    size_t size = 0;
    Stream stream = nullptr;
  };
  struct CommState {
    std::string id;
    int rank = 0, looks = 0;
    bool settled = false, joining = false, enqueuing = false, finalizing = false;
    absl::Status error;
    Operation next;
    std::vector<Operation> operations;  // in the stream, not done
  };
  struct StreamState {
    Comm comm = nullptr;
    int submitted = 0, done = 0;
  };

  void* Handle() RUNAHEAD_REQUIRES(mu_) { return reinterpret_cast<void*>(++next_); }
  void Log(const std::string& call) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    calls_.push_back(call);
    changed_.NotifyAll();
  }
  absl::Status May(bool Faults::*fault, const std::string& call) RUNAHEAD_EXCLUDES(mu_) {
    Log(call);
    MutexLock lock(mu_);
    return faults_.*fault ? absl::UnavailableError(absl::StrCat(call, " failed")) : absl::OkStatus();
  }
  CommState* Other(const CommState& state) RUNAHEAD_REQUIRES(mu_) {
    for (auto& [comm, other] : comms_) {
      if (other.id == state.id && other.rank != state.rank) return &other;
    }
    return nullptr;
  }
  absl::Status Transfer(Comm comm, int as, void* memory, size_t size, Stream stream) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    CommState& state = comms_.at(comm);
    EXPECT_TRUE(state.settled) << "called while something is in progress";
    EXPECT_EQ(state.rank, as);
    state.settled = false;
    state.enqueuing = true;
    state.looks = 0;
    state.next = {memory, size, stream};
    stream_states_.at(stream).comm = comm;
    return absl::OkStatus();
  }
  void Submit(CommState& state) RUNAHEAD_REQUIRES(mu_) {
    state.operations.push_back(state.next);
    ++stream_states_.at(state.next.stream).submitted;
  }
  // Sends and receives that have met.
  void Move() RUNAHEAD_REQUIRES(mu_) {
    for (auto& [comm, from] : comms_) {
      CommState* const to = from.rank == 0 ? Other(from) : nullptr;
      while (to != nullptr && !from.operations.empty() && !to->operations.empty()) {
        const Operation send = from.operations.front(), recv = to->operations.front();
        from.operations.erase(from.operations.begin());
        to->operations.erase(to->operations.begin());
        EXPECT_EQ(send.size, recv.size);
        std::memcpy(recv.memory, send.memory, std::min(send.size, recv.size));
        ++stream_states_.at(send.stream).done;
        ++stream_states_.at(recv.stream).done;
      }
    }
  }

  mutable Mutex mu_;
  CondVar changed_;
  Faults faults_ RUNAHEAD_GUARDED_BY(mu_);
  uintptr_t next_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  int streams_ RUNAHEAD_GUARDED_BY(mu_) = 0, marks_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  int scratches_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  std::vector<std::string> calls_ RUNAHEAD_GUARDED_BY(mu_);
  std::map<Comm, CommState> comms_ RUNAHEAD_GUARDED_BY(mu_);
  std::map<Stream, StreamState> stream_states_ RUNAHEAD_GUARDED_BY(mu_);
  std::map<Mark, std::pair<Stream, int>> mark_states_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace runahead::testing
