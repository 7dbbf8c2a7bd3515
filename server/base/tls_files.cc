#include "server/base/tls_files.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <cerrno>
#include <ctime>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/text_file.h"

namespace runahead {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 20;  // a bundle of all public authorities has 200 KiB

template <auto Free>
struct Freer {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Certificate = std::unique_ptr<X509, Freer<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;
using Bio = std::unique_ptr<BIO, Freer<BIO_free>>;
using Store = std::unique_ptr<X509_STORE, Freer<X509_STORE_free>>;
using StoreContext = std::unique_ptr<X509_STORE_CTX, Freer<X509_STORE_CTX_free>>;
using Context = std::unique_ptr<SSL_CTX, Freer<SSL_CTX_free>>;

Bio Reader(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// OpenSSL would ask at the terminal.
int NoPassphrase(char*, int, int, void*) {
  return -1;
}

Key KeyOf(const std::string& text) {
  Key key(PEM_read_bio_PrivateKey(Reader(text).get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  return key;
}

absl::Time TimeOf(const ASN1_TIME* time) {
  tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTimeT(timegm(&parts));
}

std::string DayOf(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M UTC", time, absl::UTCTimeZone());
}

// "cluster_tls_cert", "--tls-cert"
std::string OptionOf(const TlsSpec& spec, absl::string_view which) {
  return absl::StrCat(spec.prefix, absl::StartsWith(spec.prefix, "--") ? "-" : "_", which);
}

// Complaints about one of the files.
absl::Status Wrong(const TlsSpec& spec, absl::string_view which, const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(OptionOf(spec, which), ": ", path, " ", what));
}

// The certificates of the file's text: at least one, and none that is damaged.
absl::StatusOr<std::vector<Certificate>> CertificatesOf(const TlsSpec& spec, absl::string_view which,
                                                        const std::string& path, const std::string& text) {
  const Bio reader = Reader(text);
  std::vector<Certificate> all;
  ERR_clear_error();
  while (X509* const next = PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr)) all.emplace_back(next);
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;  // there are no more
  ERR_clear_error();
  if (all.empty()) return Wrong(spec, which, path, "holds no certificate in PEM form");
  if (at_end) return all;
  return Wrong(spec, which, path,
               absl::StrCat("is cut off or damaged behind its first ", all.size(), ": write it anew"));
}

absl::Status CheckTimes(const TlsSpec& spec, const X509* certificate, absl::Time now) {
  const absl::Time begins = TimeOf(X509_get0_notBefore(certificate)), ends = TimeOf(X509_get0_notAfter(certificate));
  if (now > ends) {
    return Wrong(spec, "cert", spec.files.cert, absl::StrCat("ran out on ", DayOf(ends), ": put a new one there"));
  }
  if (now < begins) {
    return Wrong(spec, "cert", spec.files.cert,
                 absl::StrCat("is good from ", DayOf(begins), " on: wait, or set this host's clock right"));
  }
  return absl::OkStatus();
}

// As the other members will judge it, at either end of a connection.
absl::Status CheckMember(const TlsSpec& spec, const std::vector<Certificate>& chain,
                         const std::vector<Certificate>& authorities, absl::Time now) {
  X509* const own = chain.front().get();
  constexpr unsigned kExactly = X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_WILDCARDS;
  if (X509_check_host(own, spec.member.data(), spec.member.size(), kExactly, nullptr) != 1) {
    return Wrong(spec, "cert", spec.files.cert,
                 absl::StrCat("is not for ", spec.member,
                              ": make one that has this DNS name (subjectAltName), or give "
                              "the name that it has as ",
                              spec.prefix, "_name"));
  }
  const Store store(X509_STORE_new());
  for (const Certificate& authority : authorities) X509_STORE_add_cert(store.get(), authority.get());
  STACK_OF(X509)* const between = sk_X509_new_null();
  for (const Certificate& certificate : chain) sk_X509_push(between, certificate.get());
  absl::Status status;
  for (const char* const end : {"ssl_server", "ssl_client"}) {
    const StoreContext context(X509_STORE_CTX_new());
    X509_STORE_CTX_init(context.get(), store.get(), own, between);
    X509_STORE_CTX_set_default(context.get(), end);
    X509_STORE_CTX_set_time(context.get(), 0, absl::ToTimeT(now));
    if (X509_verify_cert(context.get()) == 1) continue;
    const char* const why = X509_verify_cert_error_string(X509_STORE_CTX_get_error(context.get()));
    status = Wrong(spec, "cert", spec.files.cert,
                   absl::StrCat("would be refused by the others: ", why, " (as ", end, ", by ", spec.prefix, "_ca ",
                                spec.files.ca, "): have it signed by that authority, for both ends of a connection"));
    break;
  }
  sk_X509_free(between);
  ERR_clear_error();
  return status;
}

// As OpenSSL will take it, which wants more than that key and certificate fit: keys of some length, for one.
absl::Status CheckUsable(const TlsSpec& spec, const std::vector<Certificate>& chain, EVP_PKEY* key) {
  ERR_clear_error();
  const Context context(SSL_CTX_new(TLS_method()));
  bool taken = context != nullptr && SSL_CTX_use_certificate(context.get(), chain.front().get()) == 1;
  for (size_t i = 1; i < chain.size(); ++i) {
    taken = taken && SSL_CTX_add1_chain_cert(context.get(), chain[i].get()) == 1;
  }
  taken = taken && SSL_CTX_use_PrivateKey(context.get(), key) == 1;
  const char* const why = taken ? nullptr : ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  if (taken) return absl::OkStatus();
  return Wrong(spec, "cert", spec.files.cert,
               absl::StrCat("is not taken by OpenSSL: ", why != nullptr ? why : "no reason",
                            ": make it with a key of another kind or length"));
}

absl::Status CheckNotPublic(const std::string& path) {
  struct stat file;
  if (stat(path.c_str(), &file) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
  if ((file.st_mode & (S_IROTH | S_IWOTH)) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("everybody on this host may read or write ", path, ": chmod o-rw it, and make a new key"));
}

absl::Status InOption(const TlsSpec& spec, absl::string_view which, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(OptionOf(spec, which), ": ", status.message()));
}

}  // namespace

absl::Status CheckTlsFiles(const TlsSpec& spec) {
  const TlsFiles& files = spec.files;
  if (files.cert.empty() && files.key.empty() && files.ca.empty()) return absl::OkStatus();
  const bool needs_ca = !spec.member.empty() && files.ca.empty();
  const char* const missing = files.cert.empty() ? "cert" : files.key.empty() ? "key" : needs_ca ? "ca" : nullptr;
  if (missing == nullptr) return absl::OkStatus();
  const std::string and_ca = spec.member.empty() ? "" : absl::StrCat(" and ", OptionOf(spec, "ca"));
  return absl::InvalidArgumentError(absl::StrCat(OptionOf(spec, missing), ": is missing: give ", OptionOf(spec, "cert"),
                                                 ", ", OptionOf(spec, "key"), and_ca, " together, or none of them"));
}

absl::StatusOr<TlsTexts> ReadTlsTexts(const TlsSpec& spec) {
  TlsTexts texts;
  RUNAHEAD_RETURN_IF_ERROR(InOption(spec, "key", CheckNotPublic(spec.files.key)));
  const auto read = [&spec](absl::string_view which, const std::string& path, std::string& text) {
    if (path.empty()) return absl::OkStatus();
    absl::StatusOr<std::string> read = ReadTextFile(path, kMostBytes);
    if (read.ok()) text = *std::move(read);
    return InOption(spec, which, read.status());
  };
  RUNAHEAD_RETURN_IF_ERROR(read("cert", spec.files.cert, texts.cert));
  RUNAHEAD_RETURN_IF_ERROR(read("key", spec.files.key, texts.key));
  RUNAHEAD_RETURN_IF_ERROR(read("ca", spec.files.ca, texts.ca));
  return texts;
}

absl::StatusOr<TlsMaterial> CheckTls(const TlsSpec& spec, const TlsTexts& texts, absl::Time now) {
  const TlsFiles& files = spec.files;
  RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<Certificate> chain, CertificatesOf(spec, "cert", files.cert, texts.cert));
  const Key key = KeyOf(texts.key);
  if (key == nullptr) {
    return Wrong(spec, "key", files.key, "holds no private key in PEM form, or one behind a passphrase: give it bare");
  }
  const bool fits = X509_check_private_key(chain.front().get(), key.get()) == 1;
  ERR_clear_error();
  if (!fits) {
    return Wrong(
        spec, "key", files.key,
        absl::StrCat("does not fit the certificate in ", files.cert, ": give the two that were made together"));
  }
  RUNAHEAD_RETURN_IF_ERROR(CheckTimes(spec, chain.front().get(), now));
  RUNAHEAD_RETURN_IF_ERROR(CheckUsable(spec, chain, key.get()));
  std::vector<Certificate> authorities;
  if (!files.ca.empty()) {
    RUNAHEAD_ASSIGN_OR_RETURN(authorities, CertificatesOf(spec, "ca", files.ca, texts.ca));
  }
  if (!spec.member.empty()) RUNAHEAD_RETURN_IF_ERROR(CheckMember(spec, chain, authorities, now));
  return TlsMaterial{absl::StrCat(texts.cert, "\n", texts.key), texts.ca,
                     TimeOf(X509_get0_notAfter(chain.front().get()))};
}

}  // namespace runahead
