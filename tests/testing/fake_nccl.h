// NCCL and CUDA as far as a communicator sees them, inside one process, with faults on demand. It checks how it is
// called: one call at a time, none but Abort on what is not settled, everything ended. Abort returns when its GPU
// rests.
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
#include "kernels/base/event.h"
#include "kernels/base/memory.h"
#include "kernels/base/mutex.h"
#include "kernels/cuda/nccl_api.h"
#include "kernels/cuda/peer_comm.h"
#include "tests/testing/await_change.h"

namespace runahead::testing {

// Thread-safe. Two ranks of one id meet; the n-th send meets the n-th receive.
class FakeNccl final : public NcclApi {
 public:
  // What the next calls come to. Tests set them before, or while, communicators run.
  struct Faults {
    bool hold_init = false;       // communicators stay in progress
    bool fail_init = false;       // Init itself fails
    bool fail_joining = false;    // Init begins, and fails later
    bool hold_transfers = false;  // what is in a stream stays there
    bool hold_enqueue = false;    // Send and Recv stay in progress
    bool late_enqueue = false;    // and get into the stream, run for a while and end, when Abort has been called
    bool fail_send = false;       // Send itself fails
    bool hold_abort = false;      // Abort does not return while this is so
    bool hold_kernels = false;    // they do not end when Abort tells them
    bool fail_thread = false, fail_stream = false, fail_mark = false, fail_scratch = false;
  };

  ~FakeNccl() override {
    EXPECT_TRUE(comms_.empty()) << "a communicator was never ended";
    EXPECT_EQ(streams_, 0) << "a stream was never ended";
    EXPECT_EQ(marks_, 0) << "a mark was never ended";
  }

  void Set(const Faults& faults) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    faults_ = faults;
    changed_.NotifyAll();
  }
  // An error comes up in the background of all communicators.
  void FailAll() RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    for (auto& [comm, state] : comms_) state.error = absl::UnavailableError("the network broke");
  }
  // A rank's GPU, before it is opened; else it has one of its own.
  void Place(const std::string& id, PeerRank rank, int gpu) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    gpus_[{id, static_cast<int>(rank)}] = gpu;
  }
  // A stream of this GPU waits for `event`.
  void AddStreamThatWaits(int gpu, const Event& event) RUNAHEAD_EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      ++waiting_[gpu];
    }
    event.OnFire([this, gpu](const absl::Status&) {
      MutexLock lock(mu_);
      --waiting_[gpu];
      changed_.NotifyAll();
    });
  }
  int count(const std::string& call) const RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return static_cast<int>(std::count(calls_.begin(), calls_.end(), call));
  }
  void Await(const std::string& call, int count) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    ChangeWait wait(absl::StrCat(call, " was called ", count, " times"));
    while (std::count(calls_.begin(), calls_.end(), call) < count) {
      if (!wait.Next(mu_, changed_)) return;
    }
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
  absl::Status Init(const std::string& id, int rank, Comm& comm) override {
    const absl::Status status = May(&Faults::fail_init, "init");
    MutexLock lock(mu_);
    comm = Handle();
    CommState& state = comms_[comm];
    state.id = id;
    state.rank = rank;
    state.joining = true;
    const auto placed = gpus_.find({id, rank});
    state.gpu = placed == gpus_.end() ? --own_gpus_ : placed->second;
    if (CommState* const other = Other(state); other != nullptr) state.met = other->met = true;
    if (faults_.fail_joining) state.error = absl::UnavailableError("the peer refused");
    return status;
  }
  absl::StatusOr<bool> Settled(Comm comm) override {
    MutexLock lock(mu_);
    CommState& state = comms_.at(comm);
    if (!state.error.ok()) return absl::UnavailableError(state.error.message());
    const bool held = (state.joining && (faults_.hold_init || !state.met)) ||
                      (state.enqueuing && (faults_.hold_enqueue || faults_.late_enqueue));
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
  // Of what lies there when the stream comes to it.
  absl::Status Sum(const void* bytes, size_t size, uint64_t* partials, Stream stream) override {
    MutexLock lock(mu_);
    stream_states_.at(stream).sums.push_back({stream_states_.at(stream).submitted, bytes, size, partials});
    return absl::OkStatus();
  }
  absl::StatusOr<std::shared_ptr<Buffer>> NewSums(int count) override {
    return AllocateHostMemory(static_cast<size_t>(count) * kSumPartials * sizeof(uint64_t), nullptr);
  }
  void Abort(Comm comm) override {
    Log("abort");
    MutexLock lock(mu_);
    const CommState ended = std::move(comms_.at(comm));
    comms_.erase(comm);
    // Its kernels end.
    for (auto& [stream, state] : stream_states_) {
      if (state.comm == comm && !faults_.hold_kernels) state.done = state.submitted;
    }
    if (ended.enqueuing && faults_.late_enqueue) {
      StreamState& state = stream_states_.at(ended.next.stream);
      ++state.submitted;
      state.late = ended.next;
      state.looks = 10;
      changed_.NotifyAll();
      return;
    }
    changed_.NotifyAll();
    ChangeWait wait("Abort may return, and its GPU rests");
    while (faults_.hold_abort || Works(ended.gpu)) {
      if (!wait.Next(mu_, changed_)) break;
    }
    calls_.push_back("aborted");
    changed_.NotifyAll();
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
  bool Passed(Mark mark) override {
    MutexLock lock(mu_);
    if (!faults_.hold_transfers) Move();
    const auto& [stream, position] = mark_states_.at(mark);
    StreamState& state = stream_states_.at(stream);
    if (state.looks > 0 && --state.looks == 0) {
      std::memset(state.late.memory, 0xee, state.late.size);
      ++state.done;
      changed_.NotifyAll();
    }
    if (state.done < position) return false;
    while (!state.sums.empty() && state.sums.front().after <= position) {
      const PendingSum sum = state.sums.front();
      state.sums.erase(state.sums.begin());
      std::fill_n(sum.partials, kSumPartials, 0);
      const auto* const bytes = static_cast<const unsigned char*>(sum.bytes);
      for (size_t i = 0; i < sum.size; ++i) sum.partials[i % kSumPartials] += (bytes[i] + 1) * (i + 1);
    }
    return true;
  }
  void EndMark(Mark mark) override {
    MutexLock lock(mu_);
    --marks_;
    mark_states_.erase(mark);
  }
  absl::StatusOr<std::shared_ptr<Buffer>> NewScratch(size_t bytes) override {
    if (const absl::Status status = May(&Faults::fail_scratch, "scratch"); !status.ok()) return status;
    return AllocateHostMemory(bytes, nullptr);
  }

 private:
  struct Operation {
    void* memory = nullptr;
    size_t size = 0;
    Stream stream = nullptr;
  };
  struct CommState {
    std::string id;
    int rank = 0, looks = 0, gpu = 0;
    bool met = false;  // the other rank, which may be gone since
    bool settled = false, joining = false, enqueuing = false;
    absl::Status error;
    Operation next;
    std::vector<Operation> operations;  // in the stream, not done
  };
  struct PendingSum {
    int after = 0;  // so many operations of the stream
    const void* bytes = nullptr;
    size_t size = 0;
    uint64_t* partials = nullptr;
  };
  struct StreamState {
    std::vector<PendingSum> sums;
    Comm comm = nullptr;
    int submitted = 0, done = 0, gpu = 0;
    int looks = 0;  // until `late` has run
    Operation late;
  };

  bool Works(int gpu) RUNAHEAD_REQUIRES(mu_) {
    if (waiting_[gpu] > 0) return true;
    return std::any_of(stream_states_.begin(), stream_states_.end(), [gpu](const auto& stream) {
      return stream.second.gpu == gpu && stream.second.done < stream.second.submitted;
    });
  }

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
    stream_states_.at(stream).gpu = state.gpu;
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
        changed_.NotifyAll();
      }
    }
  }

  mutable Mutex mu_;
  CondVar changed_;
  Faults faults_ RUNAHEAD_GUARDED_BY(mu_);
  uintptr_t next_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  int streams_ RUNAHEAD_GUARDED_BY(mu_) = 0, marks_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  int own_gpus_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  std::map<std::pair<std::string, int>, int> gpus_ RUNAHEAD_GUARDED_BY(mu_);  // of the ranks of an id
  std::map<int, int> waiting_ RUNAHEAD_GUARDED_BY(mu_);                       // streams of a GPU
  std::vector<std::string> calls_ RUNAHEAD_GUARDED_BY(mu_);
  std::map<Comm, CommState> comms_ RUNAHEAD_GUARDED_BY(mu_);
  std::map<Stream, StreamState> stream_states_ RUNAHEAD_GUARDED_BY(mu_);
  std::map<Mark, std::pair<Stream, int>> mark_states_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace runahead::testing
