#include "server/base/tls_options.h"

#include "absl/strings/str_cat.h"

namespace runahead {

void DeclareClusterTls(ConfigSchema& schema, TlsFiles& files, std::string& name) {
  schema.String("cluster_tls_cert", &files.cert, {.value_name = "FILE"},
                "This process's certificate (PEM) among router and workers, who then speak TLS with each other, and "
                "both ends prove who they are; followed while it runs");
  schema.String("cluster_tls_key", &files.key, {.value_name = "FILE"}, "The private key of cluster_tls_cert (PEM)");
  schema.String("cluster_tls_ca", &files.ca, {.value_name = "FILE"},
                "The authorities (PEM) that sign certificates of the cluster, and of nobody else with that name");
  schema.String("cluster_tls_name", &name, {.allow_empty = false, .value_name = "NAME"},
                "The DNS name that all certificates of the cluster have, wherever their processes run");
}

void DeclarePortTls(ConfigSchema& schema, TlsFiles& files, std::string& client_auth) {
  schema.String("tls_cert", &files.cert, {.value_name = "FILE"},
                "The certificate (PEM) that clients see, who then must speak TLS; followed while the router runs");
  schema.String("tls_key", &files.key, {.value_name = "FILE"}, "The private key of tls_cert (PEM)");
  schema.String("tls_ca", &files.ca, {.value_name = "FILE"},
                "The authorities (PEM) whose certificates clients may have: see tls_client_auth");
  schema.String("tls_client_auth", &client_auth, {.one_of = {"none", "request", "require"}},
                "Whether clients are asked for a certificate of tls_ca: request judges one where the client has one, "
                "require takes nobody without");
}

absl::Status CheckClientAuth(const TlsFiles& files, const std::string& client_auth) {
  if (client_auth == "none" && !files.ca.empty()) {
    return absl::InvalidArgumentError(
        "tls_ca: is for clients' certificates, which nobody asks for: give tls_client_auth: require, or leave it out");
  }
  if (client_auth == "none" || (!files.ca.empty() && !files.cert.empty())) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tls_client_auth: ", client_auth,
                                                 " judges clients' certificates by tls_ca, under TLS: give tls_cert, "
                                                 "tls_key and tls_ca besides"));
}

}  // namespace runahead
