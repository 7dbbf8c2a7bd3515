// `runahead profile` on a real line: the cost file that it writes, and that it writes nothing where it ends early.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "server/base/text_file.h"
#include "tests/integration/local_cluster.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "tests/testing/test_process.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// One cluster for all tests of the file: starting processes is what takes long.
class ProfileTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_path_ = new std::string(WriteSynthetic(SmallModel(), "profile"));
    cluster_ = new LocalCluster(*model_path_, {"--prefill", "3", "--dtype", "f32", "--experiments"});
  }
  static void TearDownTestSuite() {
    delete cluster_;
    cluster_ = nullptr;
    delete model_path_;
  }

  ProfileTest() : folder_(absl::StrCat(::testing::TempDir(), "/profile_test.", getpid())) {
    std::filesystem::create_directory(folder_);
    file_ = folder_ + "/cost.yaml";
  }
  ~ProfileTest() override { std::filesystem::remove_all(folder_); }

  void Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), RUNAHEAD_BINARY);
    testing::TestProcess process(arguments);
    code_ = process.Wait();
    out_ = process.out();
    err_ = process.err();
  }
  void Profile(const std::string& router, std::vector<std::string> more) {
    more.insert(more.begin(), {"profile", "--router", router});
    Run(std::move(more));
  }
  std::string Text() const { return ReadTextFile(file_, 1 << 20).value(); }
  // What `plan simulate` makes of the file.
  nlohmann::json Simulate(const std::string& width) {
    Run({"plan", "simulate", "--model-cost", file_, "--tokens", "3000", "--width", width, "--json"});
    EXPECT_EQ(code_, 0) << err_;
    return nlohmann::json::parse(out_);
  }

  static std::string* model_path_;
  static LocalCluster* cluster_;
  std::string folder_, file_;
  int code_ = -1;
  std::string out_, err_;
};
std::string* ProfileTest::model_path_ = nullptr;
LocalCluster* ProfileTest::cluster_ = nullptr;

TEST_F(ProfileTest, WritesACostFileThatSimulateTakes) {
  Profile(cluster_->router(), {"-o", file_, "--tokens", "32,64,128,256,512", "--repeats", "2"});
  ASSERT_EQ(code_, 0) << err_;
  EXPECT_EQ(out_, Text());
  EXPECT_THAT(out_, HasSubstr("# small, f32, on prefill-0, prefill-1, prefill-2; "));
  EXPECT_THAT(out_, HasSubstr("# link prefill-1 to prefill-2: "));
  EXPECT_THAT(out_, HasSubstr("\nlayers: 4\nkv_bytes_per_token: 1024\n"));  // 4 layers, K and V, 2 heads of 16, f32
  EXPECT_THAT(out_, HasSubstr("\ncausal_skip: true\nreceive_ahead_layers: 2\n"));
  EXPECT_THAT(err_, HasSubstr("fitted to "));
  const nlohmann::json simulated = Simulate("3");
  EXPECT_GT(simulated["ttft_s"], 0);
  EXPECT_EQ(simulated["parts"].size(), 3u);

  // A file that stands there is kept, unless it may go.
  const std::string before = Text();
  Profile(cluster_->router(), {"-o", file_, "--tokens", "32,64,128,256,512"});
  EXPECT_EQ(code_, 2);
  EXPECT_THAT(err_, HasSubstr("cost.yaml exists; --force replaces it"));
  EXPECT_EQ(Text(), before);
  Profile(cluster_->router(), {"-o", file_, "--force", "--budget", "0.001", "--json"});
  ASSERT_EQ(code_, 0) << err_;
  EXPECT_NE(Text(), before);
  const nlohmann::json json = nlohmann::json::parse(out_);
  EXPECT_EQ(json["file"], file_);
  EXPECT_EQ(json["model"], "small");
  EXPECT_EQ(json["layers"], 4);
  EXPECT_EQ(json["kv_bytes_per_token"], 1024);
  EXPECT_EQ(json["workers"].size(), 3u);
  EXPECT_EQ(json["workers"][1]["name"], "prefill-1");
  EXPECT_EQ(json["links"].size(), 2u);
  EXPECT_EQ(json["rounds"], 1) << "whatever it takes";
  EXPECT_GE(json["runs"].size(), 5u + 2 * 3u);
  EXPECT_TRUE(json["poor"].is_boolean());
  cluster_->ExpectAllFree();
}

TEST_F(ProfileTest, InterruptedItWritesNothing) {
  ASSERT_TRUE(WriteTextFile(file_, "old").ok());
  for (const int signal : {SIGINT, SIGTERM}) {
    testing::TestProcess process({RUNAHEAD_BINARY, "profile", "--router", cluster_->router(), "-o", file_, "--force",
                                  "--repeats", "1000", "--budget", "3600"});
    EXPECT_TRUE(Eventually([&] { return cluster_->Metric("router", "runahead_requests_in_flight") > 0; }));
    process.Signal(signal);
    EXPECT_EQ(process.Wait(), 128 + signal);
    EXPECT_EQ(process.out(), "");
    EXPECT_EQ(Text(), "old");
  }
  cluster_->ExpectAllFree();
}

TEST_F(ProfileTest, OneWorkerHasNoLinks) {
  LocalCluster cluster(*model_path_, {"--prefill", "1", "--dtype", "f32", "--experiments"});
  Profile(cluster.router(), {"-o", file_, "--tokens", "64,128,256,512,1024", "--repeats", "2"});
  ASSERT_EQ(code_, 0) << err_;
  EXPECT_THAT(out_, HasSubstr("# one worker: nothing is known of links, or of chains\n"));
  EXPECT_THAT(out_, Not(HasSubstr("link_gbps")));
  EXPECT_THAT(err_, Not(HasSubstr("decode worker"))) << "KV comes over no link";
  EXPECT_GT(Simulate("1")["ttft_s"], 0);
}

TEST_F(ProfileTest, WhatDecodeWorkersMeasuredOfTheirLinksIsSaid) {
  LocalCluster cluster(*model_path_, {"--prefill", "1", "--dtype", "f32", "--experiments", "--emulated-link-gbps", "8",
                                      "--kv-device-budget", "4MiB"});
  Profile(cluster.router(), {"--tokens", "64,128,256,512,1024", "--repeats", "1", "--json"});
  ASSERT_EQ(code_, 0) << err_;
  EXPECT_THAT(err_, HasSubstr("decode worker decode-0: its link, 64 KiB at a time "));
  EXPECT_THAT(err_, HasSubstr("Host lane: "));
  const nlohmann::json decode = nlohmann::json::parse(out_)["decode"];
  ASSERT_EQ(decode.size(), 1u);
  EXPECT_EQ(decode[0]["name"], "decode-0");
  ASSERT_GE(decode[0]["link"].size(), 2u);
  EXPECT_EQ(decode[0]["link"][1]["block_bytes"], 1 << 20);
  const double to_device = decode[0]["link"][1]["to_device_bytes_per_s"];
  EXPECT_GT(to_device, 1e6);  // kvpr_link_test knows what the link has, on a clock that only copies move
  for (const char* const seconds : {"copy_latency_s", "project_s", "attend_s", "signal_s"}) {
    EXPECT_GT(decode[0][seconds], 0) << seconds;
  }
  EXPECT_EQ(decode[0]["recompute_s"], 0) << "X is no smaller than KV";
  EXPECT_GT(decode[0]["host_bytes_per_s"], 0);
  // The same is on its page.
  const auto metric = [&](const std::string& line) { return cluster.Metric("decode-0", line); };
  EXPECT_NEAR(metric("runahead_link_copy_bytes_per_second{block_bytes=\"1048576\",direction=\"to_device\"}"), to_device,
              1e-3 * to_device);
  EXPECT_GT(metric("runahead_link_copy_latency_seconds"), 0);
  EXPECT_GT(metric("runahead_kvpr_layer_seconds{work=\"signal\"}"), 0);
  const std::string project = "runahead_kvpr_layer_seconds{work=\"project\"}";
  const double at_start = metric(project);
  EXPECT_GT(at_start, 0);
  ASSERT_TRUE(cluster.Generate(Uncached(RequestOf(SyntheticIds(200, 1), 8))).status.ok());
  EXPECT_NE(metric(project), at_start) << "steps correct it";
  cluster.ExpectAllFree();
}

TEST_F(ProfileTest, WhatCannotBeMeasuredIsRefusedAndNothingIsWritten) {
  struct Case {
    std::vector<std::string> more;
    int code;
    std::string text;
  };
  const std::vector<Case> cases = {
      {{"--tokens", "64,x"}, 2, "--tokens: 'x' is no whole number"},
      {{"--tokens", "1,64"}, 2, "is no list of lengths of at least 2"},
      {{"--tokens", "5,64"}, 1, "--tokens: 5 are too few for 3 workers; allowed: from 6 on"},
      {{"--tokens", "64,4096"}, 1, "--tokens: 4096, and 1 of output, are more than the context of 4096 tokens"},
      {{"--budget", "0"}, 2, "--budget: 0 is out of range"},
      {{"--repeats", "0"}, 2, "--repeats: 0 is out of range"},
      {{"-o", folder_ + "/nowhere/c.yaml"}, 2, "-o: there is no folder"},
      {{"-o", folder_}, 2, "is no regular file"},
  };
  for (const Case& bad : cases) {
    SCOPED_TRACE(bad.text);
    Profile(cluster_->router(), bad.more);
    EXPECT_EQ(code_, bad.code);
    EXPECT_THAT(err_, HasSubstr(bad.text));
    EXPECT_EQ(out_, "");
  }
  Profile("127.0.0.1:1", {"-o", file_});
  EXPECT_EQ(code_, 1);
  EXPECT_THAT(err_, HasSubstr("UNAVAILABLE: "));

  LocalCluster plain(*model_path_, {"--prefill", "1", "--dtype", "f32"});
  Profile(plain.router(), {"-o", file_});
  EXPECT_EQ(code_, 1);
  EXPECT_THAT(err_, HasSubstr("INVALID_ARGUMENT: experiment: this router runs without --experiments"));
  EXPECT_THAT(err_, HasSubstr("runahead up --experiments"));
  EXPECT_FALSE(std::filesystem::exists(file_));
}

}  // namespace
}  // namespace runahead
