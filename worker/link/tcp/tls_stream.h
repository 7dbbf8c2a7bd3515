// TLS over a TCP connection.
#pragma once

#include <openssl/ssl.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/link/tcp/tcp_stream.h"

namespace runahead {

// What OpenSSL says of this thread's last failure: never of a key or a certificate's contents.
std::string OpensslError();

class TlsStream final : public TcpStream {
 public:
  // So much of what comes is taken from the socket at once, and so much of what goes is gathered for it. A quarter of a
  // chunk: records go through the processor's cache, and the system is called once for 16 of them.
  static constexpr size_t kBuffer = size_t{256} << 10;

  // AES-GCM keeps its promises for 2^24.5 records with one key.
  static constexpr uint64_t kKeyBytes = uint64_t{64} << 30;

  // Takes `session`, whose context and role are set. One that calls says hello with the first Flush. Its key is another
  // after each `key_bytes` that are written.
  TlsStream(Descriptor socket, SSL* session, uint64_t key_bytes = kKeyBytes);
  ~TlsStream() override;
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  int fd() const override { return socket_.get(); }
  absl::StatusOr<size_t> Read(iovec* pieces, size_t count, bool from_socket) override;
  bool buffered() const override { return SSL_has_pending(session_) == 1; }
  absl::StatusOr<size_t> Write(const iovec* pieces, size_t count) override;
  absl::Status Flush() override;
  bool unflushed() const override { return out_at_ < out_.size(); }
  bool writable() const override { return SSL_is_init_finished(session_) == 1; }
  void Close() override { CloseSocket(socket_); }

 private:
  // OpenSSL reads from the socket, many records at once, and writes to out_: else it would call the system for each
  // record of 16 KiB.
  static BIO* NewBio(TlsStream* stream);
  static int BioRead(BIO* bio, char* into, int size);
  static int BioWrite(BIO* bio, const char* from, int size);
  static long BioControl(BIO* bio, int command, long number, void* pointer);  // NOLINT: OpenSSL's types

  absl::Status RenewKey();
  // What a call of OpenSSL came to that returned `result`: bytes; 0 where it wants more to come first.
  absl::StatusOr<size_t> Outcome(int result);
  // Why the connection is over, in the words of who set it up.
  absl::Status Failure() const;

  Descriptor socket_;
  SSL* const session_;
  const uint64_t key_bytes_;
  bool from_socket_ = false;  // whether BioRead may
  absl::Status ended_;        // what the socket came to
  std::string out_;           // from out_at_ on it is to go
  size_t out_at_ = 0;
  uint64_t written_ = 0;  // with the same key
};

}  // namespace runahead
