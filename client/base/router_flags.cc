#include "client/base/router_flags.h"

#include <grpcpp/security/credentials.h>

#include <CLI/CLI.hpp>

#include "absl/time/clock.h"
#include "client/base/api_key.h"
#include "kernels/base/status_macros.h"
#include "server/base/text_file.h"
#include "server/base/tls_files.h"

namespace runahead {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 20;

absl::Status ReadIdentity(const TlsSpec& spec, grpc::SslCredentialsOptions& ssl) {
  RUNAHEAD_RETURN_IF_ERROR(CheckTlsFiles(spec));
  RUNAHEAD_ASSIGN_OR_RETURN(const TlsTexts texts, ReadTlsTexts(spec));
  RUNAHEAD_RETURN_IF_ERROR(CheckTls(spec, texts, absl::Now()).status());
  ssl.pem_cert_chain = texts.cert;
  ssl.pem_private_key = texts.key;
  return absl::OkStatus();
}

}  // namespace

void TlsFlags::AddTo(CLI::App& app) {
  app.add_flag("--tls", tls, "Speak TLS, with a server whose certificate is of an authority that this system trusts");
  app.add_option("--tls-ca", ca, "Speak TLS, with a server whose certificate is of one of these authorities (PEM)")
      ->type_name("FILE");
  app.add_option("--tls-cert", cert, "The certificate (PEM) to show to a server that wants one")->type_name("FILE");
  app.add_option("--tls-key", key, "Its private key (PEM)")->type_name("FILE");
  app.add_option("--tls-server-name", server_name,
                 "The name that the server's certificate must have; the host of its address where this is absent")
      ->type_name("NAME");
}

absl::StatusOr<ChannelTls> TlsFlags::Read() const {
  if (!given()) return ChannelTls{};
  grpc::SslCredentialsOptions ssl;
  if (!ca.empty()) {
    absl::StatusOr<std::string> text = ReadTextFile(ca, kMostBytes);
    if (!text.ok()) return absl::InvalidArgumentError(absl::StrCat("--tls-ca: ", text.status().message()));
    ssl.pem_root_certs = *std::move(text);
  }
  if (!cert.empty() || !key.empty()) {
    const absl::Status read = ReadIdentity({"--tls", {cert, key}}, ssl);
    if (!read.ok()) return absl::InvalidArgumentError(read.message());  // a file of the user's, whatever it is
  }
  return ChannelTls{grpc::SslCredentials(ssl), server_name};
}

void RouterFlags::AddTo(CLI::App& app, bool required) {
  app.add_option("--router", address, "Where the router listens (host:port)")->required(required)->type_name("ADDR");
  AddApiKey(app, &api_key);
  tls.AddTo(app);
}

}  // namespace runahead
