#include "tests/testing/test_ca.h"

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "server/base/random.h"

namespace runahead::testing {
namespace {

template <typename Write>
std::string PemOf(const Write& write) {
  BIO* const memory = BIO_new(BIO_s_mem());
  RUNAHEAD_CHECK(write(memory) == 1);
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(memory, &bytes);  // NOLINT: OpenSSL's type
  std::string pem(bytes, static_cast<size_t>(size));
  BIO_free(memory);
  return pem;
}

void Extend(X509* certificate, X509* issuer, int what, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, what, value.c_str());
  RUNAHEAD_CHECK(extension != nullptr);
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

X509* NewCertificate(const std::string& name, EVP_PKEY* key, absl::Duration begins, absl::Duration ends) {
  X509* const certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate), RandomBits64() >> 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), absl::ToInt64Seconds(begins));
  X509_gmtime_adj(X509_getm_notAfter(certificate), absl::ToInt64Seconds(ends));
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_pubkey(certificate, key);
  return certificate;
}

std::string KeyPem(EVP_PKEY* key) {
  return PemOf([key](BIO* out) { return PEM_write_bio_PrivateKey(out, key, nullptr, nullptr, 0, nullptr, nullptr); });
}
std::string CertPem(X509* certificate) {
  return PemOf([certificate](BIO* out) { return PEM_write_bio_X509(out, certificate); });
}

void WriteFile(const std::string& path, const std::string& text) {
  const std::string beside = path + ".new";
  std::ofstream(beside) << text;
  RUNAHEAD_CHECK(chmod(beside.c_str(), 0600) == 0 && std::rename(beside.c_str(), path.c_str()) == 0);
}

}  // namespace

TestCa::TestCa(const std::string& name)
    : key_(EVP_EC_gen("P-256")), authority_(NewCertificate(name, key_, -absl::Hours(1), absl::Hours(24))) {
  X509_set_issuer_name(authority_, X509_get_subject_name(authority_));
  Extend(authority_, authority_, NID_basic_constraints, "critical,CA:TRUE");
  RUNAHEAD_CHECK(X509_sign(authority_, key_, EVP_sha256()) > 0);
  cert_ = CertPem(authority_);
}

TestCa::~TestCa() {
  X509_free(authority_);
  EVP_PKEY_free(key_);
}

TestCertificate TestCa::Sign(const CertificateOf& of) const {
  EVP_PKEY* const key = of.rsa_bits > 0 ? EVP_RSA_gen(of.rsa_bits) : EVP_EC_gen("P-256");
  X509* const certificate = NewCertificate(of.common_name, key, of.begins, of.ends);
  X509_set_issuer_name(certificate, X509_get_subject_name(authority_));
  std::string names = "IP:127.0.0.1";
  for (const std::string& name : of.dns_names) absl::StrAppend(&names, ",DNS:", name);
  Extend(certificate, authority_, NID_subject_alt_name, names);
  Extend(certificate, authority_, NID_ext_key_usage, of.usage);
  RUNAHEAD_CHECK(X509_sign(certificate, key_, EVP_sha256()) > 0);
  TestCertificate signed_one{CertPem(certificate), KeyPem(key)};
  X509_free(certificate);
  EVP_PKEY_free(key);
  return signed_one;
}

TlsFolder::TlsFolder(const std::string& name, const TestCertificate& certificate, const std::string& ca) {
  const std::string folder = absl::StrCat(::testing::TempDir(), "/", getpid(), "-", name);
  std::filesystem::create_directories(folder);
  files_ = {folder + "/tls.crt", folder + "/tls.key", ca.empty() ? "" : folder + "/ca.crt"};
  if (!ca.empty()) WriteFile(files_.ca, ca);
  Replace(certificate);
}

void TlsFolder::Replace(const TestCertificate& certificate) const {
  WriteFile(files_.cert, certificate.cert);
  WriteFile(files_.key, certificate.key);
}

void TlsFolder::ReplaceKey(const std::string& key) const {
  WriteFile(files_.key, key);
}

std::vector<std::string> TlsFolder::Flags(const std::string& prefix) const {
  std::vector<std::string> flags = {absl::StrCat("--", prefix, "-cert=", files_.cert),
                                    absl::StrCat("--", prefix, "-key=", files_.key)};
  if (!files_.ca.empty()) flags.push_back(absl::StrCat("--", prefix, "-ca=", files_.ca));
  return flags;
}

std::vector<std::string> With(std::vector<std::string> args, const std::vector<std::string>& more) {
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

}  // namespace runahead::testing
