// Communicators of two ranks inside one process, with faults on demand: what NCCL would do, as far as an edge can tell.
#pragma once

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/base/mutex.h"
#include "kernels/cuda/peer_comm.h"
#include "server/base/task_thread.h"
#include "tests/testing/await_change.h"

namespace runahead::testing {

// Where two ranks meet by their id: the n-th send meets the n-th receive, whose sizes must agree, or the test fails.
// Events fire on the network's thread. A process has one GPU: the end of a communicator waits until nothing runs there.
// Thread-safe; outlives its factories.
class FakePeerNetwork {
 public:
  ~FakePeerNetwork() { EXPECT_EQ(open(), 0u) << "communicators outlive the test"; }

  // From now on two ranks that meet do not become ready until Meet().
  void HoldReady() RUNAHEAD_EXCLUDES(mu_) {
    Set([this]() RUNAHEAD_REQUIRES(mu_) { ready_held_ = true; });
  }
  void Meet() RUNAHEAD_EXCLUDES(mu_) {
    Set([this]() RUNAHEAD_REQUIRES(mu_) {
      ready_held_ = false;
      for (auto& [id, pair] : pairs_) TryReady(pair);
    });
  }
  // The deadline of all that are not ready passes.
  void ExpireReady() RUNAHEAD_EXCLUDES(mu_) {
    Set([this]() RUNAHEAD_REQUIRES(mu_) {
      for (auto& [id, pair] : pairs_) {
        for (Rank& rank : pair.ranks) {
          if (rank.open && !rank.is_ready) Fail(pair, rank, "the peer did not join within the deadline");
        }
      }
    });
  }
  // The library has no more ids, or refuses to open.
  void RefuseIds(bool refuse) RUNAHEAD_EXCLUDES(mu_) {
    Set([this, refuse]() RUNAHEAD_REQUIRES(mu_) { ids_refused_ = refuse; });
  }
  void RefuseOpen(bool refuse) RUNAHEAD_EXCLUDES(mu_) {
    Set([this, refuse]() RUNAHEAD_REQUIRES(mu_) { open_refused_ = refuse; });
  }
  // Transfers stay under way until Release().
  void HoldTransfers() RUNAHEAD_EXCLUDES(mu_) {
    Set([this]() RUNAHEAD_REQUIRES(mu_) { held_ = true; });
  }
  void Release() RUNAHEAD_EXCLUDES(mu_) {
    Set([this]() RUNAHEAD_REQUIRES(mu_) {
      held_ = false;
      for (auto& [id, pair] : pairs_) TryTransfer(pair);
    });
  }
  // The next `count` transfers arrive with a flipped bit.
  void Flip(int count) RUNAHEAD_EXCLUDES(mu_) {
    Set([this, count]() RUNAHEAD_REQUIRES(mu_) { flips_ = count; });
  }
  // An asynchronous error at one side: what `process` has of rank `rank` fails; the other side notices nothing.
  void FailAsync(const std::string& process, PeerRank rank) RUNAHEAD_EXCLUDES(mu_) {
    Set([this, &process, rank]() RUNAHEAD_REQUIRES(mu_) {
      for (auto& [id, pair] : pairs_) {
        Rank& side = pair.ranks[static_cast<int>(rank)];
        if (side.open && side.process == process) Fail(pair, side, "an asynchronous error");
      }
    });
  }

  // A stream of the process's GPU waits for `event`.
  void AddStreamThatWaits(const std::string& process, const Event& event) RUNAHEAD_EXCLUDES(mu_) {
    Set([this, &process]() RUNAHEAD_REQUIRES(mu_) { ++waiting_[process]; });
    event.OnFire([this, process](const absl::Status&) {
      Set([this, &process]() RUNAHEAD_REQUIRES(mu_) { --waiting_[process]; });
    });
  }

  size_t open() const RUNAHEAD_EXCLUDES(mu_) {
    return Count([](const Rank&) { return size_t{1}; });
  }
  // Sends and receives under way.
  size_t under_way() const RUNAHEAD_EXCLUDES(mu_) {
    return Count([](const Rank& rank) { return rank.operations.size(); });
  }
  // At least so many.
  void AwaitUnderWay(size_t count) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    ChangeWait wait(absl::StrCat(count, " sends and receives are under way"));
    while (CountLocked([](const Rank& rank) { return rank.operations.size(); }) < count) {
      if (!wait.Next(mu_, changed_)) return;
    }
  }
  // Communicators that were ever opened.
  size_t opened() const RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return opened_;
  }
  void AwaitOpened(size_t count) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    ChangeWait wait(absl::StrCat(count, " communicators were opened"));
    while (opened_ < count) {
      if (!wait.Next(mu_, changed_)) return;
    }
  }
  size_t transfers() const RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return transfers_;
  }

 private:
  friend class FakePeerCommFactory;
  struct Operation {
    BufferRef ref;
    EventSource source;
    std::shared_ptr<uint64_t> sum;
  };
  struct Rank {
    bool open = false, is_ready = false;
    std::string process;
    EventSource ready;
    absl::Status health;
    std::vector<Operation> operations;
  };
  struct Pair {
    Rank ranks[2];
  };

  template <typename F>
  void Set(F change) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    change();
    changed_.NotifyAll();
  }
  template <typename F>
  size_t Count(F of) const RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return CountLocked(of);
  }
  template <typename F>
  size_t CountLocked(F of) const RUNAHEAD_REQUIRES(mu_) {
    size_t count = 0;
    for (const auto& [id, pair] : pairs_) {
      for (const Rank& rank : pair.ranks) count += rank.open ? of(rank) : 0;
    }
    return count;
  }
  void FireLater(const EventSource& source, const absl::Status& status) {
    firing_.Post([source, status] { source.Fire(status); });
  }
  void TryReady(Pair& pair) RUNAHEAD_REQUIRES(mu_) {
    if (ready_held_ || !pair.ranks[0].open || !pair.ranks[1].open) return;
    for (Rank& rank : pair.ranks) {
      if (rank.is_ready || !rank.health.ok()) continue;
      rank.is_ready = true;
      FireLater(rank.ready, absl::OkStatus());
    }
    TryTransfer(pair);
  }
  void TryTransfer(Pair& pair) RUNAHEAD_REQUIRES(mu_) {
    Rank &from = pair.ranks[0], &to = pair.ranks[1];
    while (!held_ && from.is_ready && to.is_ready && !from.operations.empty() && !to.operations.empty()) {
      const Operation send = from.operations.front(), recv = to.operations.front();
      from.operations.erase(from.operations.begin());
      to.operations.erase(to.operations.begin());
      EXPECT_EQ(send.ref.size, recv.ref.size) << "a send met the receive of another frame";
      std::memcpy(recv.ref.data(), send.ref.data(), std::min(send.ref.size, recv.ref.size));
      if (flips_ > 0) {
        --flips_;
        recv.ref.data()[recv.ref.size / 2] ^= std::byte{1};
      }
      for (const Operation& operation : {send, recv}) {
        if (operation.sum != nullptr) *operation.sum = XXH64(operation.ref.data(), operation.ref.size, /*seed=*/0);
      }
      ++transfers_;
      changed_.NotifyAll();
      FireLater(send.source, absl::OkStatus());
      FireLater(recv.source, absl::OkStatus());
    }
  }
  void Fail(Pair&, Rank& rank, const char* why) RUNAHEAD_REQUIRES(mu_) {
    if (!rank.health.ok()) return;
    rank.health = absl::UnavailableError(why);
    FireLater(rank.ready, rank.health);
    for (const Operation& operation : rank.operations) FireLater(operation.source, rank.health);
    rank.operations.clear();
    changed_.NotifyAll();
  }

  // Kernels that wait for their peer, and streams that wait for events.
  bool Works(const std::string& process) RUNAHEAD_REQUIRES(mu_) {
    if (waiting_[process] > 0) return true;
    for (const auto& [id, pair] : pairs_) {
      for (const Rank& rank : pair.ranks) {
        if (rank.open && rank.process == process && rank.is_ready && !rank.operations.empty()) return true;
      }
    }
    return false;
  }

  mutable Mutex mu_;
  CondVar changed_;
  std::map<std::string, int> waiting_ RUNAHEAD_GUARDED_BY(mu_);  // streams of a process
  bool ready_held_ RUNAHEAD_GUARDED_BY(mu_) = false, held_ RUNAHEAD_GUARDED_BY(mu_) = false;
  bool ids_refused_ RUNAHEAD_GUARDED_BY(mu_) = false, open_refused_ RUNAHEAD_GUARDED_BY(mu_) = false;
  int flips_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  size_t next_id_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  size_t opened_ RUNAHEAD_GUARDED_BY(mu_) = 0, transfers_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  std::map<std::string, Pair> pairs_ RUNAHEAD_GUARDED_BY(mu_);
  TaskThread firing_{"firing"};
};

// What one process has of the network. Outlives its communicators.
class FakePeerCommFactory final : public PeerCommFactory {
 public:
  FakePeerCommFactory(FakePeerNetwork& network, std::string process, std::string identity)
      : network_(network), process_(std::move(process)), identity_(std::move(identity)) {}

  const std::string& identity() const override { return identity_; }
  absl::StatusOr<std::string> NewId() override {
    MutexLock lock(network_.mu_);
    if (network_.ids_refused_) return absl::UnavailableError("no id can be drawn");
    std::string id = absl::StrCat("id ", network_.next_id_++);
    id.resize(128, '.');
    return id;
  }
  absl::StatusOr<std::unique_ptr<PeerComm>> Open(const std::string& id, PeerRank rank) override {
    if (id.size() != 128) return absl::InvalidArgumentError("an id has 128 bytes");
    MutexLock lock(network_.mu_);
    if (network_.open_refused_) return absl::UnavailableError("no communicator can be made");
    FakePeerNetwork::Pair& pair = network_.pairs_[id];
    FakePeerNetwork::Rank& own = pair.ranks[static_cast<int>(rank)];
    EXPECT_FALSE(own.open) << "two of one rank";
    own.open = true;
    own.process = process_;
    ++network_.opened_;
    network_.changed_.NotifyAll();
    auto comm = std::make_unique<Comm>(network_, id, rank, own.ready.event());
    network_.TryReady(pair);
    return comm;
  }

 private:
  class Comm final : public PeerComm {
   public:
    Comm(FakePeerNetwork& network, std::string id, PeerRank rank, Event ready)
        : network_(network), id_(std::move(id)), rank_(static_cast<int>(rank)), ready_(std::move(ready)) {}
    ~Comm() override {
      Stop();
      FakePeerNetwork::Rank ended;  // destroyed without the lock
      {
        MutexLock lock(network_.mu_);
        FakePeerNetwork::Rank& own = network_.pairs_.at(id_).ranks[rank_];
        ChangeWait wait("the process's GPU rests");
        while (network_.Works(own.process)) {
          if (!wait.Next(network_.mu_, network_.changed_)) break;
        }
        std::swap(ended, own);
        network_.changed_.NotifyAll();
      }
      // Also what the network's thread is about to say has been said when this returns.
      EventSource said;
      network_.firing_.Post([said] { said.Fire(absl::OkStatus()); });
      EXPECT_TRUE(said.event().Wait(LongestWait()).ok()) << "the network's thread hangs";
    }
    void Stop() override {
      MutexLock lock(network_.mu_);
      FakePeerNetwork::Pair& pair = network_.pairs_.at(id_);
      network_.Fail(pair, pair.ranks[rank_], "the communicator was ended");
    }
    Event ready() const override { return ready_; }
    Event Send(ConstBufferRef bytes, std::shared_ptr<uint64_t> sum) override {
      return Enqueue(0, std::move(bytes), std::move(sum));
    }
    Event Recv(BufferRef into, std::shared_ptr<uint64_t> sum) override {
      return Enqueue(1, std::move(into), std::move(sum));
    }
    absl::Status Health() const override {
      MutexLock lock(network_.mu_);
      const absl::Status& health = network_.pairs_.at(id_).ranks[rank_].health;
      return absl::Status(health.code(), std::string(health.message()));
    }

   private:
    Event Enqueue(int as, BufferRef ref, std::shared_ptr<uint64_t> sum) {
      EXPECT_EQ(as, rank_) << "a sender sends, a receiver receives";
      EXPECT_GT(ref.size, 0u);
      EventSource source;
      MutexLock lock(network_.mu_);
      FakePeerNetwork::Pair& pair = network_.pairs_.at(id_);
      FakePeerNetwork::Rank& own = pair.ranks[rank_];
      if (!own.health.ok()) {
        network_.FireLater(source, own.health);
        return source.event();
      }
      own.operations.push_back({std::move(ref), source, std::move(sum)});
      network_.TryTransfer(pair);
      network_.changed_.NotifyAll();
      return source.event();
    }
    FakePeerNetwork& network_;
    const std::string id_;
    const int rank_;
    const Event ready_;
  };

  FakePeerNetwork& network_;
  const std::string process_, identity_;
};

}  // namespace runahead::testing
