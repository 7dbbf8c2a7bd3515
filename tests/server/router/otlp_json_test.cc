#include "server/router/otlp_json.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/version.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::Not;
using Json = nlohmann::json;

constexpr char kTraceOfRequest[] = "0af7651916cd43dd8448eb211c80319c";
constexpr char kRootId[] = "00000000000000aa";
constexpr char kCallersId[] = "b7ad6b7169203331";
constexpr int64_t kArrivalNs = 1'700'000'000'000'000'123;

void AddSpan(v1::TraceProcess& process, const std::string& name, int layer, int64_t start_ns, int64_t duration_ns,
             int64_t amount = 0) {
  v1::TraceSpan& span = *process.add_spans();
  span.set_name(name);
  span.set_layer(layer);
  span.set_start_ns(start_ns);
  span.set_duration_ns(duration_ns);
  span.set_amount(amount);
}

// A chat over one prefill worker and one that decodes; times in nanoseconds.
WholeTrace TraceOfChat() {
  WholeTrace whole;
  whole.trace.set_request_id("r-1");
  whole.trace.set_trace_id(kTraceOfRequest);
  v1::TraceProcess& router = *whole.trace.add_processes();
  router.set_name("router");
  AddSpan(router, "queue", -1, 0, 100);
  AddSpan(router, "prefill", -1, 100, 800);
  AddSpan(router, "decode", -1, 900, 1100, 7);
  AddSpan(router, "request", -1, 0, 2000, 20);
  v1::TraceProcess& prefill = *whole.trace.add_processes();
  prefill.set_name("prefill-0");
  prefill.set_clock_error_ns(61'000);
  AddSpan(prefill, "qkv", 0, 150, 100, 20);
  AddSpan(prefill, "mlp", 0, 250, 300, 20);
  v1::TraceProcess& decode = *whole.trace.add_processes();
  decode.set_name("decode-0");
  AddSpan(decode, "step", -1, 1000, 900, 1);
  whole.services = {"runahead-router", "runahead-prefill", "runahead-decode"};
  whole.span = {kTraceOfRequest, kRootId, true};
  whole.parent_span_id = kCallersId;
  whole.arrival_ns = kArrivalNs;
  whole.request.chat = true;
  whole.request.model = whole.request.served_model = "tiny";
  return whole;
}

// As a collector reads it.
struct ReadSpan {
  std::string service, id, parent, name;
  int kind = 0;
  int64_t begin_ns = 0, end_ns = 0;
  std::map<std::string, Json> attributes;  // each value as it is written
  Json status;
};

std::map<std::string, Json> AttributesIn(const Json& list) {
  std::map<std::string, Json> attributes;
  for (const Json& attribute : list) {
    EXPECT_TRUE(attributes.emplace(attribute.at("key"), attribute.at("value")).second) << attribute;
  }
  return attributes;
}

int64_t NanosIn(const Json& text) {
  int64_t value = 0;
  EXPECT_TRUE(text.is_string() && absl::SimpleAtoi(text.get<std::string>(), &value)) << text;
  return value;
}

std::string Written(const WholeTrace& whole) {
  uint64_t drawn = 0x1000;
  return OtlpRequest({OtlpResourceSpans(whole, [&] { return ++drawn; })});
}

std::vector<ReadSpan> Read(const std::string& text) {
  std::vector<ReadSpan> spans;
  const Json request = Json::parse(text, nullptr, false);
  for (const Json& element : request.at("resourceSpans")) {
    const auto resource = AttributesIn(element.at("resource").at("attributes"));
    EXPECT_EQ(resource.at("service.version").at("stringValue"), std::string(Version()));
    EXPECT_EQ(element.at("scopeSpans").size(), 1u);
    EXPECT_EQ(element.at("scopeSpans").at(0).at("scope").at("name"), "runahead");
    for (const Json& span : element.at("scopeSpans").at(0).at("spans")) {
      EXPECT_EQ(span.at("traceId"), kTraceOfRequest);
      spans.push_back({resource.at("service.name").at("stringValue"), span.at("spanId"), span.value("parentSpanId", ""),
                       span.at("name"), span.at("kind"), NanosIn(span.at("startTimeUnixNano")),
                       NanosIn(span.at("endTimeUnixNano")), AttributesIn(span.at("attributes")),
                       span.value("status", Json())});
    }
  }
  return spans;
}

std::vector<ReadSpan> Read(const WholeTrace& whole) {
  return Read(Written(whole));
}

const ReadSpan& Named(const std::vector<ReadSpan>& spans, const std::string& name) {
  for (const ReadSpan& span : spans) {
    if (span.name == name) return span;
  }
  ADD_FAILURE() << "no span " << name;
  return spans.at(0);
}

TEST(OtlpJson, TheSpansAreOneTreeBelowTheCallersSpan) {
  const std::vector<ReadSpan> spans = Read(TraceOfChat());
  std::map<std::string, const ReadSpan*> by_id;
  for (const ReadSpan& span : spans) {
    EXPECT_THAT(span.id, ::testing::MatchesRegex("[0-9a-f]{16}"));
    EXPECT_TRUE(by_id.emplace(span.id, &span).second) << span.id << " is there twice";
  }
  std::vector<std::string> tree;
  for (const ReadSpan& span : spans) {
    const std::string parent = by_id.contains(span.parent) ? by_id[span.parent]->name : span.parent;
    tree.push_back(absl::StrCat(span.service, ": ", parent, " > ", span.name));
    EXPECT_GE(span.begin_ns, spans[0].begin_ns) << span.name;
    EXPECT_LE(span.end_ns, spans[0].end_ns) << span.name;
  }
  EXPECT_THAT(tree, ElementsAre(absl::StrCat("runahead-router: ", kCallersId, " > chat tiny"),  //
                                "runahead-router: chat tiny > queue", "runahead-router: chat tiny > prefill",
                                "runahead-router: chat tiny > decode", "runahead-prefill: chat tiny > prefill-0",
                                "runahead-prefill: prefill-0 > qkv", "runahead-prefill: prefill-0 > mlp",
                                "runahead-decode: chat tiny > decode-0", "runahead-decode: decode-0 > step"));
  EXPECT_EQ(spans[0].id, kRootId) << "which workers had as their parent";
  EXPECT_EQ(spans[0].kind, 2) << "SPAN_KIND_SERVER";
  EXPECT_EQ(Named(spans, "qkv").kind, 1) << "SPAN_KIND_INTERNAL";
  EXPECT_EQ(Named(spans, "qkv").attributes.at("runahead.layer"), (Json{{"intValue", "0"}}));
  EXPECT_EQ(Named(spans, "qkv").attributes.at("runahead.amount"), (Json{{"intValue", "20"}}));
  EXPECT_FALSE(Named(spans, "step").attributes.contains("runahead.layer"));
  EXPECT_EQ(Named(spans, "prefill-0").attributes.at("runahead.clock_error_ns"), (Json{{"intValue", "61000"}}));
}

TEST(OtlpJson, ARequestThatComesFromNoSpanHasNoParent) {
  WholeTrace whole = TraceOfChat();
  whole.parent_span_id = "";
  EXPECT_EQ(Read(whole).at(0).parent, "");
  EXPECT_THAT(Written(whole), Not(::testing::HasSubstr("\"parentSpanId\":\"\"")));
}

TEST(OtlpJson, TimesAreThoseOfTheDay) {
  WholeTrace whole = TraceOfChat();
  whole.request.wall_ahead = -absl::Seconds(3);
  const std::vector<ReadSpan> spans = Read(whole);
  EXPECT_EQ(spans.at(0).begin_ns, kArrivalNs - 3'000'000'000);
  EXPECT_EQ(spans.at(0).end_ns, kArrivalNs - 3'000'000'000 + 2000);
  EXPECT_EQ(Named(spans, "mlp").begin_ns, kArrivalNs - 3'000'000'000 + 250);
  EXPECT_EQ(Named(spans, "prefill-0").begin_ns, kArrivalNs - 3'000'000'000 + 150);
  EXPECT_EQ(Named(spans, "prefill-0").end_ns, kArrivalNs - 3'000'000'000 + 550);
}

TEST(OtlpJson, TheRequestsSpanSaysWhatWasAskedForAndWhatCameOfIt) {
  WholeTrace whole = TraceOfChat();
  TracedRequest& request = whole.request;
  request.chat = false;
  request.model = "Tiny";
  request.sampling.set_temperature(0.7F);
  request.sampling.set_top_p(0.9F);
  request.sampling.set_top_k(40);
  request.sampling.set_seed(11);
  request.max_tokens = 64;
  request.answers = 3;
  request.finish_reason = v1::FINISH_REASON_STOP;
  request.prompt_tokens = 20;
  request.known_tokens = 16;
  request.generated_tokens = 8;
  request.ttft = absl::Milliseconds(250);
  const ReadSpan root = Read(whole).at(0);
  EXPECT_EQ(root.name, "text_completion Tiny");
  const std::map<std::string, Json> expected = {
      {"gen_ai.operation.name", {{"stringValue", "text_completion"}}},
      {"gen_ai.provider.name", {{"stringValue", "runahead"}}},
      {"gen_ai.request.model", {{"stringValue", "Tiny"}}},
      {"gen_ai.response.model", {{"stringValue", "tiny"}}},
      {"gen_ai.response.id", {{"stringValue", "r-1"}}},
      {"gen_ai.request.max_tokens", {{"intValue", "64"}}},
      {"gen_ai.request.choice.count", {{"intValue", "3"}}},
      {"gen_ai.request.temperature", {{"doubleValue", 0.7}}},
      {"gen_ai.request.top_p", {{"doubleValue", 0.9}}},
      {"gen_ai.request.top_k", {{"doubleValue", 40.0}}},
      {"gen_ai.request.seed", {{"intValue", "11"}}},
      {"gen_ai.response.finish_reasons", {{"arrayValue", {{"values", Json::array({{{"stringValue", "stop"}}})}}}}},
      {"gen_ai.usage.input_tokens", {{"intValue", "20"}}},
      {"gen_ai.usage.cache_read.input_tokens", {{"intValue", "16"}}},
      {"gen_ai.usage.output_tokens", {{"intValue", "8"}}},
      {"gen_ai.latency.time_to_first_token", {{"doubleValue", 0.25}}},
  };
  EXPECT_EQ(root.attributes, expected);
  EXPECT_TRUE(root.status.is_null()) << "it did not fail";
}

TEST(OtlpJson, AFailureIsOfAKindAndItsWordsAreNotSent) {
  WholeTrace whole = TraceOfChat();
  whole.request.status = absl::DeadlineExceededError("a template says: zanzibar");
  const ReadSpan root = Read(whole).at(0);
  EXPECT_EQ(root.attributes.at("error.type"), (Json{{"stringValue", "DEADLINE_EXCEEDED"}}));
  EXPECT_EQ(root.status, (Json{{"code", 2}})) << "STATUS_CODE_ERROR";
  EXPECT_THAT(Written(whole), Not(::testing::HasSubstr("zanzibar")));
  EXPECT_FALSE(root.attributes.contains("gen_ai.response.finish_reasons"));
  EXPECT_FALSE(root.attributes.contains("gen_ai.latency.time_to_first_token"));
}

TEST(OtlpJson, OfManySpansTheLongestGoAndTheRestIsCounted) {
  WholeTrace whole = TraceOfChat();
  v1::TraceProcess& decode = *whole.trace.mutable_processes(2);
  decode.clear_spans();
  decode.set_dropped(5);
  for (int i = 0; i < 1000; ++i) AddSpan(decode, absl::StrCat("step ", i), -1, 1000 + i, i % 4 == 0 ? 3 + i : 2);
  const std::vector<ReadSpan> spans = Read(whole);
  std::vector<std::string> sent;
  for (const ReadSpan& span : spans) {
    if (span.service == "runahead-decode" && span.name != "decode-0") sent.push_back(span.name);
  }
  std::vector<std::string> longest;
  for (int i = 1000 - 4 * kMostExportedSpans; i < 1000; i += 4) longest.push_back(absl::StrCat("step ", i));
  EXPECT_EQ(sent, longest);
  const ReadSpan& worker = Named(spans, "decode-0");
  EXPECT_EQ(worker.attributes.at("runahead.spans_left_out"),
            (Json{{"intValue", absl::StrCat(1000 - kMostExportedSpans + 5)}}));
  EXPECT_EQ(worker.begin_ns, kArrivalNs + 1000) << "it covers what is left out, too";
}

TEST(OtlpJson, AWorkerOfWhichNothingIsKnownIsCountedInTheRequestsSpan) {
  WholeTrace whole = TraceOfChat();
  whole.trace.mutable_processes(1)->clear_spans();
  whole.trace.mutable_processes(1)->set_dropped(9);
  const std::vector<ReadSpan> spans = Read(whole);
  for (const ReadSpan& span : spans) EXPECT_NE(span.service, "runahead-prefill");
  EXPECT_EQ(spans.at(0).attributes.at("runahead.spans_left_out"), (Json{{"intValue", "9"}}));
}

TEST(OtlpJson, NamesThatAreNoTextDoNoHarm) {
  WholeTrace whole = TraceOfChat();
  whole.request.model = "\xff\"\n";
  whole.trace.mutable_processes(1)->set_name("p\xc3");
  EXPECT_EQ(Read(whole).size(), 9u);
}

TEST(OtlpJson, SeveralTracesGoInOneRequest) {
  WholeTrace second = TraceOfChat();
  second.trace.set_request_id("r-2");
  uint64_t drawn = 0;
  const auto draw = [&] { return ++drawn; };
  const std::vector<ReadSpan> spans =
      Read(OtlpRequest({OtlpResourceSpans(TraceOfChat(), draw), OtlpResourceSpans(second, draw)}));
  std::set<std::string> requests;
  for (const ReadSpan& span : spans) {
    if (span.parent == kCallersId) requests.insert(span.attributes.at("gen_ai.response.id").at("stringValue"));
  }
  EXPECT_THAT(requests, ElementsAre("r-1", "r-2"));
}

}  // namespace
}  // namespace runahead
