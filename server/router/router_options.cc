#include "server/router/router_options.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/printable.h"
#include "server/base/tls_options.h"
#include "server/router/otlp_endpoint.h"
#include "server/router/request_memory.h"

namespace runahead {
namespace {

void DeclareWorker(ConfigSchema& schema, WorkerSpec& worker) {
  schema.String("role", &worker.role, {.one_of = {"prefill", "decode", "both"}, .required = true},
                "What the worker is used for");
  schema.Address("address", &worker.address, {}, "Where it listens");
  schema.String("service", &worker.service, {.value_name = "NAME"},
                "Instead of an address: the SRV records that name all workers of the role");
}

void DeclareTenant(ConfigSchema& schema, TenantSpec& tenant) {
  schema.String("name", &tenant.name, {.allow_empty = false, .required = true, .value_name = "NAME"},
                "As its clients call it");
  schema.Double("weight", &tenant.weight, {.min = 0.01, .max = 100}, "Its share beside others that wait");
}

}  // namespace

void DeclareRouterOptions(ConfigSchema& schema, RouterOptions& options) {
  DeclareProcessOptions(schema, options.process);
  DeclarePortTls(schema, options.tls, options.tls_client_auth);
  schema.String(
      "model", &options.model, {.allow_empty = false, .required = true, .value_name = "PATH"},
      "GGUF file, or Hugging Face folder, of the model that the workers serve: vocabulary, chat template and context "
      "length");
  schema.Maps<WorkerSpec>("workers", &options.workers, DeclareWorker,
                          {.min_items = 1, .max_items = 1024, .required = true},
                          "The workers; the prefill workers of one host form the line in this order");
  schema.Address("dns_server", &options.dns_server, {}, "Name server that is asked for services; absent: the system's");
  schema.Duration("dns_period", &options.dns_period, {.min = absl::Milliseconds(100), .max = absl::Minutes(10)},
                  "How often services are looked up");
  schema.String("table", &options.table, {.value_name = "FILE"},
                "Partition table (YAML); without one, prompts are split evenly");
  schema.String("schedule", &options.schedule, {.one_of = {"kvr", "kvr-even", "single"}},
                "How prompts are spread over the chain");
  schema.String("dtype", &options.dtype, {.one_of = {"auto", "f32", "bf16", "f16", "int8"}},
                "What workers must compute in; auto takes what most of the listed workers do");
  schema.String("reserve", &options.reserve, {.one_of = {"expected", "full"}},
                "For how much of an answer decode memory is reserved: expected is what such answers took lately, and "
                "more as it gets longer; full is max_tokens, before its prompt is computed");
  schema.String(
      "known_beginnings", &options.known_beginnings, {.one_of = {"on", "off"}},
      "on: a prompt that begins as a sequence did that a decode worker still has KV of may go there, and only "
      "its rest is computed; off: no KV is kept for others");
  schema.Int("queue_size", &options.queue_size, {.min = 0, .max = 1 << 20},
             "Requests that may wait for workers; more are refused");
  schema.Maps<TenantSpec>("tenants", &options.tenants, DeclareTenant, {.max_items = 1024},
                          "Tenants whose weight is not 1");
  schema.String("api_keys", &options.api_keys, {.value_name = "FILE"},
                "API keys (YAML), of which every call needs one, and what each may; without it, anybody may call");
  schema.Int("max_sessions", &options.max_sessions, {.min = 1, .max = 1 << 20},
             "Requests that run at once and have no token yet, nor wait for decode memory");
  schema.Int("max_streams", &options.max_streams, {.min = 1, .max = 1 << 20},
             "Requests that run at once, those that decode too");
  schema.Bytes("request_memory", &options.request_memory, {.min = kLeastRequestMemory},
               "Memory that all requests together may take, from their first byte until their last; more are refused");
  schema.Duration("stall_timeout", &options.stall_timeout, {.min = absl::Milliseconds(100)},
                  "How long a client may take nothing of its answer before it is cancelled");
  schema.Duration("absence_timeout", &options.absence_timeout, {},
                  "How long a request waits for workers that were lost and may come back; 0: it is refused at once");
  schema.Bool("experiments", &options.experiments, "Requests may choose width, parts and schedule");
  schema.String("trace", &options.trace, {.one_of = {"off", "asked", "all"}},
                "Which requests are recorded, for runahead trace: asked is those whose traceparent says so");
  schema.Int("traces_kept", &options.traces_kept, {.min = 1, .max = 4096},
             "How many of them are kept in memory once they have ended, the latest ones");
  schema.String("otlp_endpoint", &options.otlp_endpoint, {.value_name = "URL"},
                "Where traces are sent, too: a collector of OpenTelemetry that takes OTLP over HTTP, such as "
                "http://127.0.0.1:4318");
  schema.String("otlp_headers", &options.otlp_headers, {.value_name = "FILE"},
                "HTTP headers that go with them, such as a key, a line each: NAME: VALUE");
  schema.Bool("log_prompts", &options.log_prompts,
              "The log's line of a request has its prompt, the first 1000 characters; else no line has any of it");
}

absl::Status CheckOtlp(const RouterOptions& options) {
  if (options.otlp_endpoint.empty()) {
    if (options.otlp_headers.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("otlp_headers: they go nowhere without otlp_endpoint");
  }
  RUNAHEAD_RETURN_IF_ERROR(ParseOtlpEndpoint(options.otlp_endpoint).status());
  if (options.trace != "off") return absl::OkStatus();
  return absl::InvalidArgumentError(
      "otlp_endpoint: with trace off no request is recorded, and none is sent; give trace asked, or all");
}

absl::Status CheckTenants(const RouterOptions& options) {
  if (options.api_keys.empty() || options.tenants.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tenants: with api_keys each key is a tenant: give its weight in ",
                                                 options.api_keys, ", and leave tenants out"));
}

absl::Status CheckWorkers(absl::Span<const WorkerSpec> workers) {
  std::set<std::string> seen;
  for (size_t i = 0; i < workers.size(); ++i) {
    const WorkerSpec& worker = workers[i];
    const std::string entry = absl::StrCat("workers[", i, "]");
    if (worker.address.empty() == worker.service.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(entry, ": has ", worker.address.empty() ? "neither" : "both",
                                                     " address and service; give one of them"));
    }
    const bool fresh =
        seen.insert(worker.address.empty() ? absl::StrCat(worker.role, " ", worker.service) : worker.address).second;
    if (!fresh && worker.service.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(entry, ".address: ", worker.address, " is listed twice; one that does both has role both"));
    }
    if (!fresh) {
      return absl::InvalidArgumentError(
          absl::StrCat(entry, ".service: ", Printable(worker.service), " is listed twice for role ", worker.role));
    }
  }
  return absl::OkStatus();
}

}  // namespace runahead
