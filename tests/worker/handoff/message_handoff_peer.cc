// The other process of message_handoff_process_test: message_handoff_peer MODE TOKENS [DECODE LEASE_INC LEASE].
//   decode  a store with one lease of TOKENS; prints "<peer id> <lease incarnation> <lease number>"; never answers
//   send    pushes the whole of layer 0 to DECODE; prints "pushing", then how that ended
#include <unistd.h>

#include <cstdio>
#include <string>

#include "server/base/clock.h"
#include "tests/testing/fake_device.h"
#include "tests/testing/handoff_faults.h"
#include "tests/worker/link/host_buffer.h"
#include "tests/worker/link/new_engine.h"
#include "tests/worker/link/peer_process.h"
#include "worker/handoff/message_handoff.h"

namespace runahead::testing {
namespace {

constexpr int64_t kRowBytes = 4096;

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

int Decode(MessageEngine& engine, int64_t tokens) {
  FakeDevice device;
  auto store =
      *KvStore::Create({2, kRowBytes, tokens + kKvBlockTokens, engine.self().incarnation}, device, RealClock());
  SliceReceiver slices(*store, {});
  MessageHandoffReceiver receiver(engine, slices);
  const LeaseId lease = *store->Reserve({.prompt_tokens = tokens, .total_tokens = tokens});
  Say(ToArgument(engine.self()) + " " + std::to_string(lease.incarnation) + " " + std::to_string(lease.number));
  for (;;) pause();
}

int Send(MessageEngine& engine, int64_t tokens, char** argv) {
  SliceSender sender(MakeMessageSliceTransport(engine));
  const LeaseId lease{std::stoull(argv[4]), std::stoull(argv[5])};
  const Event pushed =
      sender.Push(FromArgument(argv[3]), {lease, 0, 0, tokens}, Pattern(tokens * kRowBytes, 1), Event());
  Say("pushing");
  Say(std::string(absl::StatusCodeToString(pushed.Wait().code())));
  for (;;) pause();
}

}  // namespace
}  // namespace runahead::testing

int main(int, char** argv) {
  const int64_t tokens = std::stoll(argv[2]);
  if (std::string(argv[1]) == "send") return runahead::testing::Send(*runahead::testing::NewEngine(), tokens, argv);
  runahead::testing::HandoffFaults faults;
  faults.HoldVerdicts();
  return runahead::testing::Decode(*runahead::testing::HoldingVerdicts(runahead::testing::NewEngine(), faults), tokens);
}
