#include "client/up/up_options.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(UpOptions, ShareOutTheCores) {
  UpOptions options;
  options.prefill = 3;
  EXPECT_EQ(ThreadsPerWorker(options, 3, 16), 5);
  EXPECT_EQ(ThreadsPerWorker(options, 3, 2), 1);
  const auto specs = WorkerSpecs(options, "/bin", 16);
  ASSERT_EQ(specs.size(), 4u);
  EXPECT_THAT(specs[0].args, Contains("--threads=5"));
  EXPECT_THAT(specs[3].args, Contains("--threads=16"));
  options.threads = 7;
  EXPECT_EQ(ThreadsPerWorker(options, 3, 2), 7);
}

TEST(UpOptions, LetDecodeStepBackBehindPrompts) {
  UpOptions options;
  const auto specs = WorkerSpecs(options, "/bin", 4);
  ASSERT_EQ(specs.size(), 2u);
  EXPECT_THAT(specs[0].args, Not(Contains(StartsWith("--nice"))));
  EXPECT_THAT(specs[1].args, Contains("--nice=10"));
}

TEST(UpOptions, NameWorkersByRoleAndNumber) {
  UpOptions options;
  options.model = "m.gguf";
  options.prefill = 2;
  options.device = "cpu";
  options.device_memory_budget = 1 << 20;
  options.dtype = "f32";
  options.kv_dtype = "f16";
  options.chain_link_gbps = 2.5;
  options.chain_link_noise = 0.25;
  options.chain_link_noise_seed = 9;
  options.emulated_link_gbps = 10;
  options.kv_memory = 1 << 30;
  options.kv_device_budget = 1 << 24;
  options.step_rows = "64";
  options.recompute = "128";
  options.recompute_within = "prompt";
  options.kvpr_objective = "column";
  options.kv_bits = "8";
  options.x_bits = "4";
  options.keep_beginnings = "on";
  options.host_lane = "off";
  options.host_lane_threads = 3;
  options.emulated_host_gbps = 40;
  options.decode_schedule = "throughput";
  const auto specs = WorkerSpecs(options, "/bin", 4);
  ASSERT_EQ(specs.size(), 3u);
  EXPECT_EQ(specs[1].name, "prefill-1");
  EXPECT_EQ(specs[1].binary, "/bin/runahead-worker");
  EXPECT_THAT(specs[1].args,
              ElementsAre("--role=prefill", "--name=prefill-1", "--model=m.gguf", "--dtype=f32", "--threads=2",
                          StartsWith("--drain-timeout="), "--device=cpu", "--kv-dtype=f16",
                          "--device-memory-budget=1048576", "--chain-link-gbps=2.5", "--chain-link-noise=0.25",
                          "--chain-link-noise-factor=3", "--chain-link-noise-seed=9", "--emulated-link-gbps=10"));
  EXPECT_EQ(specs[2].name, "decode-0");
  EXPECT_THAT(specs[2].args, Contains("--role=decode"));
  EXPECT_THAT(specs[2].args, Contains("--kv-device-budget=16777216"));
  EXPECT_THAT(specs[2].args, Contains("--step-rows=64"));
  EXPECT_THAT(specs[2].args, Contains("--recompute=128"));
  EXPECT_THAT(specs[2].args, Contains("--kv-memory=1073741824"));
  EXPECT_THAT(specs[2].args, Contains("--recompute-within=prompt"));
  EXPECT_THAT(specs[2].args, Contains("--kvpr-objective=column"));
  EXPECT_THAT(specs[2].args, Contains("--kv-bits=8"));
  EXPECT_THAT(specs[2].args, Contains("--x-bits=4"));
  EXPECT_THAT(specs[2].args, Contains("--keep-beginnings=on"));
  EXPECT_THAT(specs[2].args, Contains("--host-lane=off"));
  EXPECT_THAT(specs[2].args, Contains("--host-lane-threads=3"));
  EXPECT_THAT(specs[2].args, Contains("--emulated-host-gbps=40"));
  EXPECT_THAT(specs[2].args, Contains("--decode-schedule=throughput"));
  EXPECT_THAT(specs[2].args, Not(Contains(HasSubstr("--chain-link-gbps"))));
  EXPECT_THAT(specs[2].args, Not(Contains(HasSubstr("--handoff"))));
}

TEST(UpOptions, GiveEachWorkerTheNextGpu) {
  UpOptions options;
  options.prefill = 2;
  const auto specs = WorkerSpecs(options, "/bin", 4);
  ASSERT_EQ(specs.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(specs[i].args, Contains("--device=auto"));
    EXPECT_THAT(specs[i].args, Contains(absl::StrCat("--gpu=", i)));
  }
  options.device = "cpu";
  EXPECT_THAT(WorkerSpecs(options, "/bin", 4)[0].args, Not(Contains(HasSubstr("--gpu"))));
}

TEST(UpOptions, ShareWeightsUnlessTheyAreToldNotToOrOnlyGpusCompute) {
  UpOptions options;
  EXPECT_TRUE(options.shares_weights());
  options.device = "cuda";
  EXPECT_FALSE(options.shares_weights());
  options.device = "cpu";
  EXPECT_TRUE(options.shares_weights());
  options.shared_weights = "off";
  EXPECT_FALSE(options.shares_weights());
}

TEST(UpOptions, PaceCopiesOfTheCpuDeviceOnly) {
  UpOptions options;
  options.emulated_link_gbps = 10;
  EXPECT_TRUE(CheckUpOptions(options).ok());
  options.device = "cuda";
  const absl::Status status = CheckUpOptions(options);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), StartsWith("--emulated-link-gbps:"));
}

TEST(UpOptions, AnEmulatedHostNeedsAnEmulatedLink) {
  UpOptions options;
  options.emulated_host_gbps = 40;
  EXPECT_THAT(std::string(CheckUpOptions(options).message()),
              StartsWith("--emulated-host-gbps: give --emulated-link-gbps"));
  options.emulated_link_gbps = 10;
  EXPECT_TRUE(CheckUpOptions(options).ok());
}

TEST(UpOptions, PutAGatewayBeforeTheRouterUnlessThatSpeaksTls) {
  UpOptions options;
  EXPECT_TRUE(options.has_gateway());
  options.model_aliases = {"gpt-4o"};
  const ChildSpec free = GatewaySpec(options, "/bin", "127.0.0.1:9");
  EXPECT_EQ(free.name, "gateway");
  EXPECT_EQ(free.binary, "/bin/runahead-gateway");
  EXPECT_EQ(free.listen, "127.0.0.1:0");
  EXPECT_THAT(free.args, ElementsAre("--router=127.0.0.1:9", StartsWith("--drain-timeout="), "--model-aliases=gpt-4o"));
  options.http = "127.0.0.1:8000";
  EXPECT_EQ(GatewaySpec(options, "/bin", "127.0.0.1:9").listen, "127.0.0.1:8000");
  EXPECT_TRUE(CheckUpOptions(options).ok());
  options.http = "8000";
  EXPECT_THAT(std::string(CheckUpOptions(options).message()), StartsWith("--http: "));
  options.http = "off";
  EXPECT_FALSE(options.has_gateway());
  EXPECT_TRUE(CheckUpOptions(options).ok());
  options.tls.cert = "cert.pem";
  options.http = "auto";
  EXPECT_FALSE(options.has_gateway());
  EXPECT_TRUE(CheckUpOptions(options).ok());
  options.http = "127.0.0.1:8000";
  EXPECT_THAT(std::string(CheckUpOptions(options).message()), StartsWith("--http: the router speaks TLS"));
}

TEST(UpOptions, TellTheRouterItsWorkersInOrder) {
  UpOptions options;
  options.model = "m.gguf";
  options.prefill = 1;
  options.schedule = "single";
  EXPECT_THAT(RouterSpec(options, "/bin", {"127.0.0.1:1", "127.0.0.1:2"}).args,
              ElementsAre("--model=m.gguf", "--schedule=single", "--dtype=auto", StartsWith("--drain-timeout="),
                          "--workers=role=prefill,address=127.0.0.1:1", "--workers=role=decode,address=127.0.0.1:2"));
  options.table = "t.yaml";
  options.experiments = true;
  options.reserve = "full";
  options.known_beginnings = "off";
  options.trace = "asked";
  EXPECT_THAT(RouterSpec(options, "/bin", {}).args, Contains("--trace=asked"));
  EXPECT_THAT(RouterSpec(options, "/bin", {}).args, Not(Contains(HasSubstr("--otlp"))));
  options.otlp_endpoint = "http://127.0.0.1:4318";
  EXPECT_THAT(RouterSpec(options, "/bin", {}).args, Contains("--otlp-endpoint=http://127.0.0.1:4318"));
  EXPECT_THAT(RouterSpec(options, "/bin", {}).args, Contains("--table=t.yaml"));
  EXPECT_THAT(RouterSpec(options, "/bin", {}).args, Contains("--reserve=full"));
  EXPECT_THAT(RouterSpec(options, "/bin", {}).args, Contains("--known-beginnings=off"));
  EXPECT_THAT(RouterSpec(options, "/bin", {}).args, Not(Contains(HasSubstr("api-keys"))));
  options.api_keys = "keys.yaml";
  EXPECT_THAT(RouterSpec(options, "/bin", {}).args, Contains("--api-keys=keys.yaml"));
  EXPECT_THAT(RouterSpec(options, "/bin", {}).args, Contains("--experiments"));
}

TEST(UpOptions, HandTheCertificatesOnToThoseWhoNeedThem) {
  UpOptions options;
  EXPECT_THAT(RouterSpec(options, "/bin", {}).args, Not(Contains(HasSubstr("tls")))) << "it stays one command without";
  EXPECT_THAT(WorkerSpecs(options, "/bin", 4)[0].args, Not(Contains(HasSubstr("tls"))));
  options.tls = {"r.crt", "r.key", "clients.crt"};
  options.tls_client_auth = "require";
  options.cluster_tls = {"c.crt", "c.key", "ca.crt"};
  options.cluster_tls_name = "ours";
  const auto router = RouterSpec(options, "/bin", {}).args;
  for (const char* const flag :
       {"--tls-cert=r.crt", "--tls-key=r.key", "--tls-ca=clients.crt", "--tls-client-auth=require"}) {
    EXPECT_THAT(router, Contains(flag));
    for (const ChildSpec& worker : WorkerSpecs(options, "/bin", 4)) EXPECT_THAT(worker.args, Not(Contains(flag)));
  }
  for (const char* const flag :
       {"--cluster-tls-cert=c.crt", "--cluster-tls-key=c.key", "--cluster-tls-ca=ca.crt", "--cluster-tls-name=ours"}) {
    EXPECT_THAT(router, Contains(flag));
    for (const ChildSpec& worker : WorkerSpecs(options, "/bin", 4)) EXPECT_THAT(worker.args, Contains(flag));
  }
}

TEST(UpOptions, TellAllProcessesHowToLogAndTheRouterAloneOfPrompts) {
  UpOptions options;
  options.log_format = "json";
  options.log_prompts = true;
  const std::vector<std::string> router = RouterSpec(options, "/bin", {}).args;
  EXPECT_THAT(router, Contains("--log-format=json"));
  EXPECT_THAT(router, Contains("--log-prompts"));
  for (const ChildSpec& worker : WorkerSpecs(options, "/bin", 4)) {
    EXPECT_THAT(worker.args, Contains("--log-format=json")) << worker.name;
    EXPECT_THAT(worker.args, Not(Contains("--log-prompts"))) << worker.name;
  }
}

TEST(UpOptions, NoiseNeedsAPacedLink) {
  UpOptions options;
  EXPECT_TRUE(CheckUpOptions(options).ok());
  options.chain_link_noise = 0.5;
  EXPECT_THAT(CheckUpOptions(options).message(), HasSubstr("--chain-link-noise: give --chain-link-gbps besides"));
  options.chain_link_gbps = 1;
  EXPECT_TRUE(CheckUpOptions(options).ok());
}

TEST(UpOptions, AreReadFromAFile) {
  UpOptions options;
  ConfigSchema schema;
  DeclareUpOptions(schema, options);
  ASSERT_TRUE(ReadConfigText("model: m.gguf\nprefill: 3\nexperiments: true\n", "up.yaml", schema).ok());
  EXPECT_TRUE(schema.Finish("up.yaml").ok());
  EXPECT_EQ(options.prefill, 3);
  EXPECT_TRUE(options.experiments);
  EXPECT_THAT(ReadConfigText("decode: 0\n", "up.yaml", schema).message(), HasSubstr("up.yaml:1"));
}

}  // namespace
}  // namespace runahead
