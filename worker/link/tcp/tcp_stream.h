// The bytes of a TCP connection: as they are, or under TLS.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/descriptor.h"

namespace runahead {

// Non-blocking. Used by one thread. After an error it is to be closed.
class TcpStream {
 public:
  virtual ~TcpStream() = default;

  virtual int fd() const = 0;
  // Reads into the pieces, in order; returns how many bytes came, 0 when there are none now. Not `from_socket`: only of
  // what has been taken from the socket already. UNAVAILABLE: the peer has closed.
  virtual absl::StatusOr<size_t> Read(iovec* pieces, size_t count, bool from_socket) = 0;
  // Whether something has been taken from the socket and not been read.
  virtual bool buffered() const = 0;
  // Takes bytes of the pieces, in order; returns how many, 0 when none are taken now. What was taken is not needed any
  // more.
  virtual absl::StatusOr<size_t> Write(const iovec* pieces, size_t count) = 0;
  // Gives the socket what was taken and is not there yet, as far as it takes it.
  virtual absl::Status Flush() = 0;
  // Whether some of that is left.
  virtual bool unflushed() const = 0;
  // Whether Write may take bytes once the socket does. Else only Read changes it.
  virtual bool writable() const = 0;
  // Ends the connection, also where a child of this process still has the descriptor.
  virtual void Close() = 0;
};

// As they are.
class PlainStream final : public TcpStream {
 public:
  explicit PlainStream(Descriptor socket) : socket_(std::move(socket)) {}

  int fd() const override { return socket_.get(); }
  absl::StatusOr<size_t> Read(iovec* pieces, size_t count, bool from_socket) override;
  bool buffered() const override { return false; }
  absl::StatusOr<size_t> Write(const iovec* pieces, size_t count) override;
  absl::Status Flush() override { return absl::OkStatus(); }
  bool unflushed() const override { return false; }
  bool writable() const override { return true; }
  void Close() override;

 private:
  Descriptor socket_;
};

// What every stream does with its socket. 0: none now.
absl::StatusOr<size_t> ReadSocket(const Descriptor& socket, const iovec* pieces, size_t count);
absl::StatusOr<size_t> WriteSocket(const Descriptor& socket, const iovec* pieces, size_t count);
void CloseSocket(Descriptor& socket);

}  // namespace runahead
