#include "worker/link/tcp/tls_stream.h"

#include <openssl/err.h>
#include <openssl/x509.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

constexpr size_t kRecord = size_t{16} << 10;  // TLS has no longer ones

}  // namespace

std::string OpensslError() {
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  return reason != nullptr ? reason : "the handshake failed";
}

TlsStream::TlsStream(Descriptor socket, SSL* session, uint64_t key_bytes)
    : socket_(std::move(socket)), session_(session), key_bytes_(key_bytes) {
  BIO* const bio = NewBio(this);
  SSL_set_bio(session_, bio, bio);                               // which it owns then
  if (SSL_is_server(session_) == 0) SSL_do_handshake(session_);  // its hello goes to out_, and it wants the answer
  ERR_clear_error();
}

TlsStream::~TlsStream() {
  SSL_free(session_);
}

BIO* TlsStream::NewBio(TlsStream* stream) {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "link");
    BIO_meth_set_read(made, BioRead);
    BIO_meth_set_write(made, BioWrite);
    BIO_meth_set_ctrl(made, BioControl);
    return made;
  }();
  BIO* const bio = BIO_new(method);
  BIO_set_data(bio, stream);
  BIO_set_init(bio, 1);
  return bio;
}

int TlsStream::BioRead(BIO* bio, char* into, int size) {
  auto& stream = *static_cast<TlsStream*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  const iovec piece{into, static_cast<size_t>(size)};
  absl::StatusOr<size_t> got = 0;
  if (stream.from_socket_) got = ReadSocket(stream.socket_, &piece, 1);
  if (got.ok() && *got > 0) return static_cast<int>(*got);
  stream.ended_.Update(got.status());
  if (got.ok()) BIO_set_retry_read(bio);
  return -1;
}

int TlsStream::BioWrite(BIO* bio, const char* from, int size) {
  auto& stream = *static_cast<TlsStream*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  stream.out_.append(from, static_cast<size_t>(size));  // Write bounds it
  return size;
}

long TlsStream::BioControl(BIO*, int command, long, void*) {  // NOLINT: OpenSSL's types
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

absl::StatusOr<size_t> TlsStream::Outcome(int result) {
  if (result > 0) return static_cast<size_t>(result);
  const int error = SSL_get_error(session_, result);
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return 0;
  RUNAHEAD_RETURN_IF_ERROR(ended_);
  if (error == SSL_ERROR_ZERO_RETURN) return absl::UnavailableError("the peer closed the connection");
  const absl::Status failure = Failure();
  Flush().IgnoreError();  // the alert, so that the other end knows why
  ERR_clear_error();
  return failure;
}

absl::Status TlsStream::Failure() const {
  const unsigned long code = ERR_peek_error();  // NOLINT: OpenSSL's type
  const int reason = ERR_GET_REASON(code);
  if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED) {
    return absl::UnauthenticatedError(absl::StrCat(
        "the peer's certificate is refused: ", X509_verify_cert_error_string(SSL_get_verify_result(session_)),
        "; give it one of cluster_tls_ca, for cluster_tls_name"));
  }
  if (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST || reason == SSL_R_UNEXPECTED_MESSAGE) {
    return absl::UnauthenticatedError("the peer does not speak TLS: give all workers and the router cluster_tls_cert");
  }
  if (reason > SSL_AD_REASON_OFFSET) {
    return absl::UnauthenticatedError(absl::StrCat("the peer refuses this worker's certificate: ", OpensslError(),
                                                   "; give both one of the same cluster_tls_ca"));
  }
  return absl::UnauthenticatedError(absl::StrCat("TLS with the peer failed: ", OpensslError()));
}

absl::StatusOr<size_t> TlsStream::Read(iovec* pieces, size_t count, bool from_socket) {
  from_socket_ = from_socket;
  size_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    char* at = static_cast<char*>(pieces[i].iov_base);
    size_t left = pieces[i].iov_len;
    while (left > 0) {
      ERR_clear_error();
      const int most = static_cast<int>(std::min(left, size_t{INT_MAX}));
      const absl::StatusOr<size_t> got = Outcome(SSL_read(session_, at, most));
      // What came before the end is seen first; the end comes again.
      if (!got.ok() && total == 0) return got;
      if (!got.ok() || *got == 0) return total;
      at += *got;
      left -= *got;
      total += *got;
    }
  }
  return total;
}

absl::StatusOr<size_t> TlsStream::Write(const iovec* pieces, size_t count) {
  if (!writable()) return 0;
  size_t total = 0;
  for (size_t i = 0; i < count && out_.size() < kBuffer; ++i) {
    const char* at = static_cast<const char*>(pieces[i].iov_base);
    size_t left = pieces[i].iov_len;
    while (left > 0 && out_.size() < kBuffer) {
      ERR_clear_error();
      const int most = static_cast<int>(std::min(left, kRecord));
      RUNAHEAD_ASSIGN_OR_RETURN(const size_t taken, Outcome(SSL_write(session_, at, most)));
      if (taken == 0) return total;
      if ((written_ += taken) >= key_bytes_) RUNAHEAD_RETURN_IF_ERROR(RenewKey());
      at += taken;
      left -= taken;
      total += taken;
    }
  }
  return total;
}

absl::Status TlsStream::RenewKey() {
  written_ = 0;
  ERR_clear_error();
  // The handshake says so at once: until then nothing would be writable.
  if (SSL_key_update(session_, SSL_KEY_UPDATE_NOT_REQUESTED) != 1) return Failure();
  return Outcome(SSL_do_handshake(session_)).status();
}

absl::Status TlsStream::Flush() {
  while (unflushed()) {
    const iovec piece{out_.data() + out_at_, out_.size() - out_at_};
    RUNAHEAD_ASSIGN_OR_RETURN(const size_t sent, WriteSocket(socket_, &piece, 1));
    if (sent == 0) return absl::OkStatus();
    out_at_ += sent;
  }
  out_.clear();
  out_at_ = 0;
  return absl::OkStatus();
}

}  // namespace runahead
