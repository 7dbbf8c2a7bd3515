// docs/configuration.md against what the processes really take, both ways: the router's options too, for most are
// shared.
#include "worker/options.h"

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/limits.h"
#include "server/base/metrics.h"
#include "server/router/router_options.h"

namespace runahead {
namespace {

struct Row {
  std::string default_cell;
  std::string kind_cell;  // of a table of flags: what the flag means
};

// By section ("every process") and name ("queue_size"; "--ready-fd N" of a table of flags).
using Page = std::map<std::string, std::map<std::string, Row>>;

Page ReadPage() {
  Page page;
  std::ifstream file("docs/configuration.md");
  std::string section;
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, "## ")) {
      section = absl::StartsWith(line, "## Options of ") ? line.substr(14) : "";
    } else if (!section.empty() && absl::StartsWith(line, "| `")) {
      const std::vector<std::string> cells = absl::StrSplit(line, " | ");
      const std::string name(absl::StripSuffix(absl::StripPrefix(cells.at(0), "| `"), "`"));
      EXPECT_TRUE(page[section].emplace(name, Row{cells.at(1), cells.at(2)}).second) << name << " stands twice";
    }
  }
  return page;
}

// As the table of 'Values' calls it, with its limits.
std::string KindOf(const ConfigKey& key) {
  if (key.is_maps) return "list of maps";
  if (key.is_bool) return "switch";
  if (absl::StartsWith(key.allowed, "one of ")) return "name";
  if (absl::StartsWith(key.allowed, "host:port")) return "address";
  if (absl::StartsWith(key.allowed, "text")) return "text";
  return absl::StrReplaceAll(key.allowed, {{"a number of bytes such as 1048576, 512MiB, 8GiB or 2GB", "size"},
                                           {"a duration such as 250ms, 30s or 1m30s", "duration"},
                                           {"a whole number", "whole number"},
                                           {"a number", "number"}});
}

// Every option is on the page, with its default and kind, and every name on the page is an option.
void ExpectSame(const ConfigSchema& schema, const Page& page, const std::string& own) {
  std::map<std::string, Row> written = page.at("every process");
  written.insert(page.at(own).begin(), page.at(own).end());
  for (const ConfigKey& key : schema.keys()) {
    if (key.flag_only) {
      const std::string flag = absl::StrCat("--", absl::StrReplaceAll(key.name, {{"_", "-"}}), " ", key.value_name);
      EXPECT_EQ(written.erase(flag), 1u) << flag;
      continue;
    }
    ASSERT_EQ(written.count(key.name), 1u) << key.name << " is not in 'Options of " << own << "'";
    const auto& [default_cell, kind_cell] = written.at(key.name);
    EXPECT_EQ(default_cell == "required", key.required) << key.name;
    EXPECT_EQ(kind_cell, KindOf(key)) << key.name;
    if (!key.default_text.empty()) {
      EXPECT_EQ(default_cell, absl::StrCat("`", key.default_text, "`")) << key.name;
    }
    written.erase(key.name);
  }
  for (const auto& [name, row] : written) ADD_FAILURE() << name << " is no option";
}

TEST(ConfigurationPage, HasTheRoutersOptionsAndNoOthers) {
  RouterOptions options;
  ConfigSchema schema;
  DeclareRouterOptions(schema, options);
  ExpectSame(schema, ReadPage(), "the router");
}

TEST(ConfigurationPage, HasTheWorkersOptionsAndNoOthers) {
  WorkerOptions options;
  ConfigSchema schema;
  DeclareWorkerOptions(schema, options);
  ExpectSame(schema, ReadPage(), "a worker");
}

// What takes longer than the last bound of a histogram of latencies cannot be told apart.
TEST(Options, GiveNoMorePatienceThanLatenciesAreMeasured) {
  RouterOptions router;
  WorkerOptions worker;
  ConfigSchema of_router, of_worker;
  DeclareRouterOptions(of_router, router);
  DeclareWorkerOptions(of_worker, worker);
  const std::string longer = absl::FormatDuration(kLongestLatency + absl::Seconds(1));
  int durations = 0;
  for (ConfigSchema* schema : {&of_router, &of_worker}) {
    for (const ConfigKey& key : schema->keys()) {
      if (KindOf(key).find("duration") == std::string::npos) continue;
      ++durations;
      const absl::Status status = ReadConfigText(absl::StrCat(key.name, ": ", longer), "x.yaml", *schema);
      EXPECT_THAT(status.message(), ::testing::HasSubstr(longer + " is out of range")) << key.name;
    }
  }
  EXPECT_GE(durations, 7) << "drain_timeout and port_patience of both, and the router's own";
  EXPECT_GE(TtftBuckets().back(), absl::ToDoubleSeconds(kLongestLatency));
  EXPECT_GE(TokenBuckets().back(), absl::ToDoubleSeconds(kLongestLatency));
}

// DecodeMetrics' buckets end there.
TEST(WorkerOptions, ABatchIsAtMostWhatIsCounted) {
  WorkerOptions options;
  ConfigSchema schema;
  DeclareWorkerOptions(schema, options);
  EXPECT_TRUE(ReadConfigText(absl::StrCat("max_batch: ", kMostBatch), "x.yaml", schema).ok());
  ConfigSchema again;
  DeclareWorkerOptions(again, options);
  EXPECT_THAT(ReadConfigText(absl::StrCat("max_batch: ", kMostBatch + 1), "x.yaml", again).message(),
              ::testing::HasSubstr("out of range"));
}

// Configurations of before say so.
TEST(WorkerOptions, TransportsThatAreGoneAreRefusedWithWhatToDo) {
  const auto read = [](const std::string& text) {
    WorkerOptions options;
    ConfigSchema schema;
    DeclareWorkerOptions(schema, options);
    return std::string(ReadConfigText(text, "w.yaml", schema).message());
  };
  EXPECT_EQ(read("link_transport: tcp\nhandoff: link"), "");
  EXPECT_THAT(read("link_transport: ucx"),
              ::testing::HasSubstr("w.yaml:1: link_transport: 'ucx' is gone: workers reach"));
  EXPECT_THAT(read("handoff: grpc"), ::testing::HasSubstr("give decode workers a link_port"));
}

TEST(WorkerOptions, OnlyDecodeWorkersStreamWeights) {
  for (const char* role : {"decode", "prefill", "both"}) {
    for (const char* schedule : {"auto", "latency", "throughput"}) {
      WorkerOptions options;
      options.role = role;
      options.decode_schedule = schedule;
      const absl::Status status = CheckWorkerOptions(options);
      if (schedule != std::string("throughput") || role == std::string("decode")) {
        EXPECT_TRUE(status.ok()) << role << ", " << schedule << ": " << status;
        continue;
      }
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("role: decode"));
    }
  }
}

TEST(WorkerOptions, KvMemoryIsTheDefaultOrOfUse) {
  WorkerOptions options;
  EXPECT_TRUE(CheckWorkerOptions(options).ok());
  options.kv_memory = 1 << 20;
  EXPECT_TRUE(CheckWorkerOptions(options).ok());
  --options.kv_memory;
  EXPECT_THAT(CheckWorkerOptions(options).message(), ::testing::HasSubstr("kv_memory: "));
}

TEST(WorkerOptions, AReserveIsOfAStaticWindow) {
  WorkerOptions options;
  options.static_window_reserve = 100;
  EXPECT_THAT(CheckWorkerOptions(options).message(), ::testing::HasSubstr("give static_window"));
  options.static_window = 64;
  EXPECT_TRUE(CheckWorkerOptions(options).ok());
}

TEST(WorkerOptions, BitsOfRowsAreOfAStaticWindow) {
  WorkerOptions options;
  options.static_window_bits = "8";
  EXPECT_THAT(CheckWorkerOptions(options).message(), ::testing::HasSubstr("give static_window"));
  options.static_window = 64;
  EXPECT_TRUE(CheckWorkerOptions(options).ok());
}

TEST(WorkerOptions, NoiseNeedsAPacedLink) {
  WorkerOptions options;
  EXPECT_TRUE(CheckWorkerOptions(options).ok());
  options.chain_link_noise = 0.5;
  EXPECT_THAT(CheckWorkerOptions(options).message(), ::testing::HasSubstr("chain_link_noise: give chain_link_gbps"));
  options.chain_link_gbps = 1;
  EXPECT_TRUE(CheckWorkerOptions(options).ok());
}

TEST(WorkerOptions, WithoutAKeyOnlyLoopbackIsListenedOn) {
  WorkerOptions options;
  for (const char* listen : {"0.0.0.0:0", "[::]:0", "10.0.0.1:7000", "worker-3:7000"}) {
    options.process.listen = listen;
    options.process.cluster_key = "";
    EXPECT_THAT(CheckWorkerOptions(options).message(), ::testing::HasSubstr("the same cluster_key")) << listen;
    options.process.cluster_key = "cluster.key";
    EXPECT_TRUE(CheckWorkerOptions(options).ok()) << listen;
  }
}

TEST(WorkerOptions, AnEmulatedHostNeedsAnEmulatedLink) {
  WorkerOptions options;
  options.emulated_host_gbps = 8;
  EXPECT_THAT(CheckWorkerOptions(options).message(),
              ::testing::HasSubstr("emulated_host_gbps: give emulated_link_gbps"));
  options.emulated_link_gbps = 2;
  EXPECT_TRUE(CheckWorkerOptions(options).ok());
}

TEST(WorkerOptions, WhatCallsTakeIsOfADeviceBehindAnEmulatedLink) {
  for (const auto field : {&WorkerOptions::emulated_call_us, &WorkerOptions::emulated_launch_us}) {
    WorkerOptions options;
    options.*field = 5;
    EXPECT_THAT(CheckWorkerOptions(options).message(), ::testing::HasSubstr("_us: give emulated_link_gbps"));
    options.emulated_link_gbps = 2;
    EXPECT_TRUE(CheckWorkerOptions(options).ok());
  }
}

TEST(WorkerOptions, TheHostDoesNotAttendOverQuantisedKv) {
  WorkerOptions options;
  options.host_lane = "256";
  EXPECT_TRUE(CheckWorkerOptions(options).ok());
  options.kv_bits = "8";
  EXPECT_THAT(CheckWorkerOptions(options).message(), ::testing::HasSubstr("host_lane: "));
  for (const char* const lane : {"auto", "off", "0"}) {
    options.host_lane = lane;
    EXPECT_TRUE(CheckWorkerOptions(options).ok()) << lane;
  }
}

TEST(WorkerOptions, StaticWindowsAreNotQuantised) {
  WorkerOptions options;
  options.static_window = 512;
  EXPECT_TRUE(CheckWorkerOptions(options).ok());
  options.kv_bits = "8";
  EXPECT_THAT(CheckWorkerOptions(options).message(), ::testing::HasSubstr("static_window: "));
}

TEST(WorkerOptions, BeginningsAreKeptByThemselvesWhereKvIsNotQuantised) {
  WorkerOptions options;
  EXPECT_TRUE(options.keeps_beginnings());
  options.keep_beginnings = "off";
  EXPECT_FALSE(options.keeps_beginnings());
  options.keep_beginnings = "auto";
  options.kv_bits = "8";
  EXPECT_FALSE(options.keeps_beginnings());
  options.keep_beginnings = "on";
  EXPECT_TRUE(options.keeps_beginnings());
  EXPECT_TRUE(CheckWorkerOptions(options).ok());
}

TEST(WorkerOptions, StaticWindowsKeepNoBeginnings) {
  WorkerOptions options;
  options.static_window = 512;
  options.keep_beginnings = "on";
  EXPECT_THAT(CheckWorkerOptions(options).message(), ::testing::HasSubstr("keep_beginnings: "));
  options.keep_beginnings = "off";
  EXPECT_TRUE(CheckWorkerOptions(options).ok());
}

TEST(WorkerOptions, ANumberOfStepRowsIsRefusedBesideWhatComputesNone) {
  WorkerOptions options;
  options.role = "decode";
  options.step_rows = "64";
  EXPECT_TRUE(CheckWorkerOptions(options).ok());
  const auto refused = [](WorkerOptions beside, const char* why) {
    EXPECT_THAT(std::string(CheckWorkerOptions(beside).message()),
                ::testing::AllOf(::testing::StartsWith("step_rows: "), ::testing::HasSubstr(why)));
    for (const char* rows : {"auto", "off", "0"}) {
      beside.step_rows = rows;
      EXPECT_TRUE(CheckWorkerOptions(beside).ok()) << why << " " << rows;
    }
  };
  WorkerOptions beside = options;
  beside.static_window = 512;
  refused(beside, "static_window");
  beside = options;
  beside.kv_bits = "8";
  refused(beside, "kv_bits");
  beside = options;
  beside.decode_schedule = "throughput";
  refused(beside, "decode_schedule");
  for (const char* bad : {"4097", "some", "-1"}) {
    options.step_rows = bad;
    EXPECT_THAT(std::string(CheckWorkerOptions(options).message()), ::testing::StartsWith("step_rows: ")) << bad;
  }
}

TEST(WorkerOptions, LanesAreAutoOffOrANumberOfTokens) {
  using Mode = LaneChoice::Mode;
  EXPECT_EQ(ParseLaneChoice("recompute", "auto")->mode, Mode::kAuto);
  EXPECT_EQ(ParseLaneChoice("recompute", "off")->mode, Mode::kOff);
  EXPECT_EQ(ParseLaneChoice("recompute", "256")->mode, Mode::kFixed);
  EXPECT_EQ(ParseLaneChoice("recompute", "256")->tokens, 256);
  EXPECT_EQ(ParseLaneChoice("step_rows", "6\x1b\n").status().message(),
            "step_rows: '6\\x1b\\n' is neither auto, off, nor a number of tokens");
  for (const char* bad : {"", "on", "-1", "1.5", "64k"}) {
    WorkerOptions recompute, host_lane;
    recompute.recompute = host_lane.host_lane = bad;
    EXPECT_THAT(std::string(CheckWorkerOptions(recompute).message()), ::testing::StartsWith("recompute: ")) << bad;
    EXPECT_THAT(std::string(CheckWorkerOptions(host_lane).message()), ::testing::StartsWith("host_lane: ")) << bad;
  }
}

}  // namespace
}  // namespace runahead
