// The other process of message_process_test: message_peer MODE BYTES PARENT. Prints its peer id, then what
// happens.
//   receive  takes frame (1, 0, 0), printing "moving" at its first bytes
//   send     sends frame (1, 0, 0)
//   spray    sends small messages without end
//   answer   sends a message for each that comes
//   stop     stops its engine
//   end      ends its engine, and itself, at a line of its input
#include <unistd.h>

#include <cstdio>
#include <string>

#include "tests/worker/link/host_buffer.h"
#include "tests/worker/link/new_engine.h"
#include "tests/worker/link/peer_process.h"
#include "worker/link/message/message_edge.h"

namespace runahead::testing {
namespace {

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// One message after the other, each from the `done` of the one before.
void Spray(MessageEngine& engine, const PeerId& to) {
  engine.Send(to, MessageKind::kEdgeControl, "spray", ConstBufferRef(), [&engine, to](const absl::Status& status) {
    if (status.ok()) Spray(engine, to);
  });
}

int Main(char** argv) {
  const std::string mode = argv[1];
  const size_t bytes = std::stoull(argv[2]);
  auto engine = NewEngine();
  if (mode == "spray") {
    Say(ToArgument(engine->self()));
    for (int i = 0; i < 8; ++i) Spray(*engine, FromArgument(argv[3]));
    for (;;) pause();
  }
  if (mode == "answer") {
    engine->SetHandler(MessageKind::kEdgeControl, [&engine, parent = FromArgument(argv[3])](const Message&) {
      engine->Send(parent, MessageKind::kEdgeControl, "", ConstBufferRef(), [](const absl::Status&) {});
    });
    Say(ToArgument(engine->self()));
    for (;;) pause();
  }
  if (mode == "stop") {
    engine->Stop();
    Say(ToArgument(engine->self()));
    for (;;) pause();
  }
  if (mode == "end") {
    Say(ToArgument(engine->self()));
    while (std::getchar() != '\n') {
    }
    engine = nullptr;
    return 0;
  }
  MessageEdgeFactory factory(*engine);
  Say(ToArgument(factory.self()));
  const auto edge = *factory.Open(FromArgument(argv[3]));
  if (mode == "receive") {
    const BufferRef into = Room(bytes);
    const Event got = edge->Recv({1, 0, 0}, into);
    const volatile std::byte* first = into.data();
    while (*first == std::byte{0} && !got.fired()) {
    }
    Say("moving");
    Say(got.Wait().ok() ? "whole" : "failed");
  } else {
    edge->Send({1, 0, 0}, Pattern(bytes, 1), Event());
  }
  for (;;) pause();
}

}  // namespace
}  // namespace runahead::testing

int main(int, char** argv) {
  return runahead::testing::Main(argv);
}
