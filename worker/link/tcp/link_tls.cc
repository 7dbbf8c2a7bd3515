#include "worker/link/tcp/link_tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

int NoPassphrase(char*, int, int, void*) {
  return -1;
}

template <typename Object, typename Free>
std::unique_ptr<Object, Free> Owned(Object* object, Free free) {
  return {object, free};
}

// Of the PEM text: its certificates into `take`, in order.
template <typename Take>
void ForCertificates(const std::string& text, Take take) {
  const auto reader = Owned(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free);
  while (X509* const next = PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr)) take(next);
}

bool TakeIdentity(SSL_CTX* context, const std::string& pem) {
  bool first = true, taken = true;
  ForCertificates(pem, [&](X509* certificate) {
    if (std::exchange(first, false)) {
      taken = SSL_CTX_use_certificate(context, certificate) == 1;
      X509_free(certificate);
    } else {
      taken = taken && SSL_CTX_add_extra_chain_cert(context, certificate) == 1;  // whose it is then
    }
  });
  const auto reader = Owned(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free);
  const auto key = Owned(PEM_read_bio_PrivateKey(reader.get(), nullptr, NoPassphrase, nullptr), EVP_PKEY_free);
  return taken && !first && key != nullptr && SSL_CTX_use_PrivateKey(context, key.get()) == 1 &&
         SSL_CTX_check_private_key(context) == 1;
}

std::shared_ptr<SSL_CTX> ContextOf(const TlsMaterial& material, const std::string& name) {
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_method()), SSL_CTX_free);
  if (context == nullptr || SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) != 1) return nullptr;
  // AES-128 first: of the ciphers of TLS 1.3 it is the fastest where the processor has AES.
  SSL_CTX_set_ciphersuites(context.get(), "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256");
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  // A session that was resumed would not be judged anew.
  SSL_CTX_set_num_tickets(context.get(), 0);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_read_ahead(context.get(), 1);
  SSL_CTX_set_default_read_buffer_len(context.get(), TlsStream::kBuffer);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  X509_VERIFY_PARAM* const judged = SSL_CTX_get0_param(context.get());
  // As CheckTls and gRPC's connections take the name.
  X509_VERIFY_PARAM_set_hostflags(judged, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_WILDCARDS);
  if (X509_VERIFY_PARAM_set1_host(judged, name.data(), name.size()) != 1) return nullptr;
  X509_STORE* const authorities = SSL_CTX_get_cert_store(context.get());
  ForCertificates(material.ca, [authorities](X509* authority) {
    X509_STORE_add_cert(authorities, authority);
    X509_free(authority);
  });
  return TakeIdentity(context.get(), material.identity) ? context : nullptr;
}

}  // namespace

absl::Status LinkTls::Use(const TlsMaterial& material) {
  ERR_clear_error();
  std::shared_ptr<SSL_CTX> context = ContextOf(material, name_);
  if (context == nullptr) {
    const std::string why = OpensslError();
    ERR_clear_error();
    return absl::InternalError(absl::StrCat("OpenSSL does not take the certificate for links: ", why));
  }
  ERR_clear_error();
  MutexLock lock(mu_);
  context_ = std::move(context);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TcpStream>> LinkTls::Over(Descriptor socket, bool calls) const {
  SSL* session = nullptr;
  {
    MutexLock lock(mu_);
    if (context_ != nullptr) session = SSL_new(context_.get());
  }
  if (session == nullptr) return absl::InternalError("TLS cannot begin: OpenSSL has no memory, or no certificate");
  calls ? SSL_set_connect_state(session) : SSL_set_accept_state(session);
  return std::make_unique<TlsStream>(std::move(socket), session, key_bytes_);
}

}  // namespace runahead
