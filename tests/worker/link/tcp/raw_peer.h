// A process that speaks the TCP link's protocol up to its frames, in which it says what a test likes.
#pragma once

#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "server/base/random.h"
#include "tests/testing/await.h"
#include "tests/worker/link/tcp/raw_socket.h"
#include "worker/link/tcp/tcp_engine.h"
#include "worker/link/tcp/tcp_proof.h"
#include "worker/link/tcp/tcp_wire.h"

namespace runahead::testing {

// Where no test connects to.
inline constexpr char kNowhere[] = "127.0.0.1:1";

inline std::string Hello(const PeerId& from, uint64_t to) {
  TcpHello hello;
  hello.from = from.incarnation;
  hello.to = to;
  hello.address_bytes = static_cast<uint16_t>(from.address.size());
  return TcpBytes(hello) + from.address;
}

struct RawPeer {
  // Says hello as `as`, and hears the answer.
  RawPeer(const TcpEngine& engine, PeerId as) : id(std::move(as)), socket(engine.self().address) {
    hello = Hello(id, engine.self().incarnation);
    socket.Say(hello);
    answer = socket.Hear(sizeof(TcpHello) + engine.self().address.size());
    proof = socket.Hear(kTcpProofBytes);
    TcpHello plain = TcpRead<TcpHello>(answer.data());
    plain.nonce = {};
    EXPECT_EQ(TcpBytes(plain) + answer.substr(sizeof(plain)), Hello(engine.self(), id.incarnation));
  }
  // The same as somebody new, who has no key, as the engine has none; a peer of the engine's when this returns.
  explicit RawPeer(TcpEngine& engine) : RawPeer(engine, {kNowhere, RandomBits64()}) {
    Prove(ClusterKey());
    EXPECT_TRUE(Await("the engine has taken it for a peer", [&] { return !engine.Transport(id).empty(); }));
  }

  void Prove(const ClusterKey& key) {
    EXPECT_EQ(proof, TcpProof(key, /*of_caller=*/false, hello, answer));
    socket.Say(TcpProof(key, /*of_caller=*/true, hello, answer));
  }

  const PeerId id;
  RawSocket socket;
  std::string hello, answer, proof;  // proof: the engine's
};

}  // namespace runahead::testing
