#include "server/rpc/tls_credentials.h"

#include <fcntl.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

namespace experimental = grpc::experimental;

// How often gRPC looks at the files; it takes no less.
constexpr unsigned kLookSeconds = 1;

// A file of this user alone that is dated `version` seconds after 1970: gRPC reads certificate and key one after the
// other, and again where the date is another one afterwards.
absl::StatusOr<Descriptor> MemoryFile(const std::string& text, uint64_t version) {
  Descriptor file(memfd_create("tls", MFD_CLOEXEC));
  const timespec date{static_cast<time_t>(version), 0};
  const timespec dates[2] = {date, date};
  if (!file.valid() || fchmod(file.get(), 0600) != 0 ||
      write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      futimens(file.get(), dates) != 0) {
    return absl::ErrnoToStatus(errno, "cannot keep a certificate in a file of memory");
  }
  return file;
}

std::string PathOf(const Descriptor& file) {
  return absl::StrCat("/proc/self/fd/", file.get());
}

// From now on the name of `file` is that of `next`: at once, for whoever opens it.
absl::Status ReplaceFile(const Descriptor& file, const Descriptor& next) {
  if (dup3(next.get(), file.get(), O_CLOEXEC) < 0) return absl::ErrnoToStatus(errno, "cannot replace a file of memory");
  return absl::OkStatus();
}

// That the other end's certificate, whose authority gRPC has judged, is good now, and a member's where `name` is given.
// A session that is resumed comes here, too: gRPC does not judge its certificate again.
class PeerVerifier final : public experimental::ExternalCertificateVerifier {
 public:
  explicit PeerVerifier(std::string name) : name_(std::move(name)) {}

  bool Verify(experimental::TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    if (HasRunOut(std::string(request->peer_cert().data(), request->peer_cert().size()), absl::Now())) {
      *status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "the certificate of the other end has run out");
      return true;
    }
    const std::vector<grpc::string_ref> names = request->dns_names();
    const auto is_name = [this](const grpc::string_ref& name) {
      return absl::EqualsIgnoreCase(absl::string_view(name.data(), name.size()), name_);
    };
    if (!name_.empty() && std::none_of(names.begin(), names.end(), is_name)) {
      *status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                             absl::StrCat("the certificate of the other end is not for ", name_,
                                          " (option cluster_tls_name): it is no member of this cluster"));
    }
    return true;
  }
  void Cancel(experimental::TlsCustomVerificationCheckRequest*) override {}

 private:
  const std::string name_;
};

}  // namespace

bool HasRunOut(const std::string& certificate, absl::Time now) {
  BIO* const reader = BIO_new_mem_buf(certificate.data(), static_cast<int>(certificate.size()));
  X509* const read = PEM_read_bio_X509(reader, nullptr, nullptr, nullptr);
  BIO_free(reader);
  ERR_clear_error();
  if (read == nullptr) return false;
  time_t at = absl::ToTimeT(now);
  const bool run_out = X509_cmp_time(X509_get0_notAfter(read), &at) < 0;
  X509_free(read);
  return run_out;
}

absl::StatusOr<std::unique_ptr<TlsCredentials>> TlsCredentials::Create(const TlsMaterial& material) {
  std::unique_ptr<TlsCredentials> credentials(new TlsCredentials);
  RUNAHEAD_ASSIGN_OR_RETURN(credentials->identity_, MemoryFile(material.identity, ++credentials->version_));
  const std::string identity = PathOf(credentials->identity_);
  if (material.ca.empty()) {
    credentials->provider_ =
        std::make_shared<experimental::FileWatcherCertificateProvider>(identity, identity, kLookSeconds);
    return credentials;
  }
  RUNAHEAD_ASSIGN_OR_RETURN(credentials->ca_, MemoryFile(material.ca, credentials->version_));
  credentials->provider_ = std::make_shared<experimental::FileWatcherCertificateProvider>(
      identity, identity, PathOf(credentials->ca_), kLookSeconds);
  return credentials;
}

absl::Status TlsCredentials::Replace(const TlsMaterial& material) {
  ++version_;
  RUNAHEAD_ASSIGN_OR_RETURN(const Descriptor identity, MemoryFile(material.identity, version_));
  if (!ca_.valid()) return ReplaceFile(identity_, identity);
  RUNAHEAD_ASSIGN_OR_RETURN(const Descriptor ca, MemoryFile(material.ca, version_));
  RUNAHEAD_RETURN_IF_ERROR(ReplaceFile(identity_, identity));  // both are there by now
  return ReplaceFile(ca_, ca);
}

std::shared_ptr<grpc::ServerCredentials> TlsCredentials::ForServer(ClientAuth auth) const {
  experimental::TlsServerCredentialsOptions options(provider_);
  options.watch_identity_key_cert_pairs();
  if (ca_.valid()) options.watch_root_certs();
  options.set_cert_request_type(auth == ClientAuth::kNone ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                : auth == ClientAuth::kRequest
                                    ? GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY
                                    : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  if (auth != ClientAuth::kNone) {
    options.set_certificate_verifier(experimental::ExternalCertificateVerifier::Create<PeerVerifier>(/*name=*/""));
  }
  return experimental::TlsServerCredentials(options);
}

std::shared_ptr<grpc::ServerCredentials> TlsCredentials::ForMembersServer(const std::string& name) const {
  experimental::TlsServerCredentialsOptions options(provider_);
  options.watch_identity_key_cert_pairs();
  options.watch_root_certs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.set_certificate_verifier(experimental::ExternalCertificateVerifier::Create<PeerVerifier>(name));
  return experimental::TlsServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> TlsCredentials::ForMembersChannel(const std::string& name) const {
  experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(provider_);
  options.watch_identity_key_cert_pairs();
  options.watch_root_certs();
  options.set_check_call_host(false);  // by the name above instead
  options.set_certificate_verifier(experimental::ExternalCertificateVerifier::Create<PeerVerifier>(name));
  return experimental::TlsCredentials(options);
}

}  // namespace runahead
