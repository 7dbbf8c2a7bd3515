// An authority of a test's own, and what it signs. Everything is made when the test runs.
#pragma once

#include <openssl/x509.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/base/tls_files.h"

namespace runahead::testing {

struct TestCertificate {
  std::string cert, key;  // PEM
};

// What a certificate says of its owner and of its time.
struct CertificateOf {
  std::vector<std::string> dns_names = {"runahead-cluster", "localhost"};
  absl::Duration begins = -absl::Hours(1), ends = absl::Hours(1);  // from now on
  const char* usage = "serverAuth,clientAuth";
  std::string common_name = "a process of a test";
  int rsa_bits = 0;  // 0: a key of P-256
};

class TestCa {
 public:
  explicit TestCa(const std::string& name = "ca of a test");
  ~TestCa();

  const std::string& cert() const { return cert_; }
  // With a key of its own, and the address 127.0.0.1 beside the names.
  TestCertificate Sign(const CertificateOf& of = {}) const;

 private:
  EVP_PKEY* const key_;
  X509* const authority_;
  std::string cert_;
};

// Files of one certificate, in a folder of this test's.
class TlsFolder {
 public:
  // `name`: of the folder.
  TlsFolder(const std::string& name, const TestCertificate& certificate, const std::string& ca);

  const TlsFiles& files() const { return files_; }
  // Each file is written beside its place and then takes its name.
  void Replace(const TestCertificate& certificate) const;
  void ReplaceKey(const std::string& key) const;

  // "--cluster-tls-cert=..." and so on, for `prefix` "cluster-tls".
  std::vector<std::string> Flags(const std::string& prefix) const;

 private:
  TlsFiles files_;
};

// Appends `more` to `args`.
std::vector<std::string> With(std::vector<std::string> args, const std::vector<std::string>& more);

}  // namespace runahead::testing
