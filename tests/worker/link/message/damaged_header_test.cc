// What engines send beside a message's bytes, prefixes and headers, with each bit flipped in turn: it is never taken
// for what it is not, and nobody waits for what does not come.
#include <dlfcn.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "tests/worker/link/edge_contract.h"
#include "tests/worker/link/new_engine.h"
#include "worker/link/message/message_edge.h"

namespace runahead {
namespace {

using ::runahead::testing::NewEngine;
using ::runahead::testing::Pattern;
using ::runahead::testing::Room;

// A network between the engines of this process that flips one bit. Thread-safe.
class FlippingNetwork {
 public:
  // Bit `bit` of all that is read from now on.
  void Flip(int64_t bit) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    left_ = bit / 8;
    mask_ = static_cast<unsigned char>(1u << (bit % 8));
    hit_ = false;
  }
  // Flips nothing any more. Whether the bit came.
  bool Rest() RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    left_.reset();
    return hit_;
  }
  void Pass(unsigned char* bytes, size_t size) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (!left_.has_value()) return;
    if (*left_ >= static_cast<int64_t>(size)) {
      *left_ -= static_cast<int64_t>(size);
      return;
    }
    bytes[*left_] ^= mask_;
    left_.reset();
    hit_ = true;
  }

 private:
  Mutex mu_;
  std::optional<int64_t> left_ RUNAHEAD_GUARDED_BY(mu_);  // bytes before the bit's
  unsigned char mask_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  bool hit_ RUNAHEAD_GUARDED_BY(mu_) = false;
};

FlippingNetwork& Network() {
  static FlippingNetwork& network = *new FlippingNetwork;  // engines of other tests receive to the end
  return network;
}

// More than a prefix and a frame's header take; what follows is flipped, too.
constexpr int64_t kBits = 8 * 120;

constexpr absl::Duration kBound = absl::Seconds(10);

// Two processes.
class DamagedHeader : public ::testing::Test {
 protected:
  std::array<std::unique_ptr<MessageEngine>, 2> engines_ = {NewEngine(), NewEngine()};
};

class DamagedFrameHeader : public DamagedHeader {
 protected:
  DamagedFrameHeader() {
    for (int i = 0; i < 2; ++i) factories_[i] = std::make_unique<MessageEdgeFactory>(*engines_[i]);
  }

  // The edge is made anew, and works.
  void Open() {
    ++generation_;
    for (int i = 0; i < 2; ++i) {
      peers_[i] = factories_[1 - i]->self();
      peers_[i].generation = generation_;
      edges_[i] = *factories_[i]->Open(peers_[i]);
    }
    ASSERT_EQ(Send(100), absl::StatusCode::kOk);
  }
  void Close() {
    for (int i = 0; i < 2; ++i) factories_[i]->Close(peers_[i]);
  }
  bool Lives() const { return edges_[0]->Health().ok() && edges_[1]->Health().ok(); }

  // A job of one frame. OK: it came as it was sent, and all of it is over.
  absl::StatusCode Send(size_t size) {
    const JobId job = ++job_;
    const BufferRef into = Room(size), bytes = Pattern(size, job);
    const Event got = edges_[1]->Recv({job, 3, 1}, into);
    const Event sent = edges_[0]->Send({job, 3, 1}, bytes, Event());
    const Event over[] = {edges_[0]->Finish(job), edges_[1]->Finish(job)};
    absl::StatusCode code = absl::StatusCode::kOk;
    for (const Event& event : {got, sent, over[0], over[1]}) {
      const absl::Status status = event.Wait(kBound);
      EXPECT_NE(status.code(), absl::StatusCode::kDeadlineExceeded) << "somebody waits for ever";
      if (!status.ok()) code = status.code();
    }
    if (got.status()->ok()) {
      EXPECT_EQ(testing::Bytes(into), testing::Bytes(bytes));
    }
    return code;
  }

  std::array<std::unique_ptr<EdgeFactory>, 2> factories_;
  std::array<PeerId, 2> peers_;
  std::array<std::shared_ptr<Edge>, 2> edges_;
  uint32_t generation_ = 0;
  JobId job_ = 0;
};

TEST_F(DamagedFrameHeader, EndsTheEdgeOrNothingAndIsNeverAnotherFrame) {
  for (const size_t size : {size_t{100}, size_t{20'000}}) {  // with its header, and on its own
    Open();
    int ended = 0;
    for (int64_t bit = 0; bit<kBits; bit += size> kEagerBytes ? 7 : 1) {
      SCOPED_TRACE(absl::StrCat("bit ", bit, " of a frame of ", size, " bytes"));
      Network().Flip(bit);
      const absl::StatusCode code = Send(size);
      ASSERT_TRUE(Network().Rest()) << "the test shows nothing";
      if (code == absl::StatusCode::kOk && Lives()) continue;
      ++ended;
      Close();
      Open();
      if (HasFailure()) return;
    }
    EXPECT_GT(ended, kBits / 14);
    Close();
  }
}

class DamagedSliceHeader : public DamagedHeader {
 protected:
  DamagedSliceHeader() {
    for (const auto& engine : engines_) {
      engine->SetHandler(MessageKind::kSlice, [this](const Message& message) {
        MutexLock lock(mu_);
        came_.insert(std::string(message.header));
        changed_.NotifyAll();
      });
    }
  }
  ~DamagedSliceHeader() override {
    for (auto& engine : engines_) engine.reset();
  }

  // Whether it came; else the connection has ended.
  bool Send(int from) RUNAHEAD_EXCLUDES(mu_) {
    const PeerId to = engines_[1 - from]->self();
    const std::string header(testing::Bytes(Pattern(90, ++sent_)));
    const auto dead = std::make_shared<bool>(false);
    engines_[from]->Connect(to, [this, dead](const absl::Status&) {
      MutexLock lock(mu_);
      *dead = true;
      changed_.NotifyAll();
    });
    const auto answered = std::make_shared<bool>(false);
    engines_[from]->Send(to, MessageKind::kSlice, header, Pattern(100, sent_), [this, answered](const absl::Status&) {
      MutexLock lock(mu_);
      *answered = true;
      changed_.NotifyAll();
    });
    const absl::Time until = MonotonicNow() + kBound;
    MutexLock lock(mu_);
    while (!*dead && !(came_.contains(header) && *answered) && MonotonicNow() < until) {
      changed_.WaitFor(mu_, until - MonotonicNow());
    }
    const bool came = came_.erase(header) > 0;
    EXPECT_TRUE(came || *dead) << "it is lost without a word";
    EXPECT_TRUE(came_.empty()) << "something came that nobody sent";
    return came;
  }

  Mutex mu_;
  CondVar changed_;
  std::set<std::string> came_ RUNAHEAD_GUARDED_BY(mu_);  // headers
  uint64_t sent_ = 0;
};

TEST_F(DamagedSliceHeader, EndsTheConnectionAndIsNeverAnotherSlice) {
  for (int64_t bit = 0; bit < kBits; ++bit) {
    SCOPED_TRACE(absl::StrCat("bit ", bit));
    // Over a new connection, both ends of which have heard of each other.
    for (int tries = 0; !(Send(0) && Send(1)); ++tries) ASSERT_LT(tries, 10);
    Network().Flip(bit);
    EXPECT_FALSE(Send(0));
    ASSERT_TRUE(Network().Rest()) << "the test shows nothing";
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace runahead

// Links read by it, and nothing else does.
extern "C" ssize_t readv(int fd, const iovec* pieces, int count) {
  static const auto next = reinterpret_cast<ssize_t (*)(int, const iovec*, int)>(dlsym(RTLD_NEXT, "readv"));
  const ssize_t got = next(fd, pieces, count);
  size_t left = got > 0 ? static_cast<size_t>(got) : 0;
  for (int i = 0; i < count && left > 0; ++i) {
    const size_t size = std::min(left, pieces[i].iov_len);
    runahead::Network().Pass(static_cast<unsigned char*>(pieces[i].iov_base), size);
    left -= size;
  }
  return got;
}
