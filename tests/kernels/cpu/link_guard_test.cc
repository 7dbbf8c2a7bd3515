// That no op of the CPU device reaches past its emulated link. What ops and arguments there are is read from
// kernels/base/device.h, so that a new one fails here until it is checked, and called below.
#include "kernels/cpu/link_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/memory.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/kernels/cpu/random_weights.h"

namespace runahead {
namespace {

constexpr AttentionShape kShape{.heads = 2, .kv_heads = 1, .head_dim = 8};
constexpr KvQuant kQuant{};
constexpr int64_t kPositions = 3;

std::shared_ptr<Device> DeviceBehindLink() {
  return *NewCpuDevice({.emulated_link = *EmulatedLink::Create({.gbps = 1e6})});
}

// A call of one op on zeros. All arguments but one lie on the device; remembers their names.
class GuardedCall {
 public:
  // `on_host`: the argument in host memory, or "" for none, or "*" for all.
  GuardedCall(Device& device, Stream& stream, std::string on_host)
      : device(device), stream(stream), on_host_(std::move(on_host)) {}

  BufferRef Bytes(const std::string& name, size_t size) {
    names_.insert(name);
    const bool host = on_host_ == "*" || on_host_ == name;
    BufferRef ref = BufferRef::Whole(*device.Allocate(size, host ? MemoryKind::kHost : MemoryKind::kDevice));
    std::memset(ref.data(), 0, size);
    return ref;
  }
  Tensor Floats(const std::string& name, int64_t rows, int64_t cols) {
    return MakeTensor(Bytes(name, rows * cols * 4), DType::kF32, rows, cols);
  }
  BufferRef Layer() { return Bytes("layer", kPositions * kShape.kv_row_bytes()); }
  std::shared_ptr<const KvTable> Table() { return *device.MakeKvTable(stream, KvLayout::OnePage(1, kPositions)); }
  const std::shared_ptr<const Weights>& Matrix() {
    const RandomWeights matrix(WeightType::kF32, 8, 4, 1);
    matrix_ = *device.LoadWeights(matrix.Source(), kUseDecode);
    return matrix_;
  }
  const std::set<std::string>& names() const { return names_; }

  Device& device;
  Stream& stream;

 private:
  const std::string on_host_;
  std::set<std::string> names_;
  std::shared_ptr<const Weights> matrix_;  // Embed does not hold it
};

// By the names of Device's methods. Arguments have the names of its parameters.
using OpCall = std::function<absl::Status(GuardedCall& call)>;
const std::map<std::string, OpCall>& OpCalls() {
  static const auto& calls = *new std::map<std::string, OpCall>{
      {"Embed",
       [](GuardedCall& c) { return c.device.Embed(c.stream, *c.Matrix(), {1}, false, c.Floats("out", 1, 4)); }},
      {"RmsNorm",
       [](GuardedCall& c) {
         return c.device.RmsNorm(c.stream, c.Floats("x", 2, 8), c.Floats("weight", 1, 8), 1e-5f, c.Floats("out", 2, 8));
       }},
      {"HeadNorm",
       [](GuardedCall& c) {
         return c.device.HeadNorm(c.stream, c.Floats("x", 2, 8), 4, c.Floats("weight", 1, 4), 1e-5f);
       }},
      {"LayerNorm",
       [](GuardedCall& c) {
         return c.device.LayerNorm(c.stream, c.Floats("x", 2, 8), c.Floats("weight", 1, 8), c.Floats("bias", 1, 8),
                                   1e-5f, c.Floats("out", 2, 8));
       }},
      {"Linear",
       [](GuardedCall& c) {
         return c.device.Linear(c.stream, c.Floats("x", 2, 4), c.Matrix(),
                                {.batch_invariant = true, .bias = c.Floats("options.bias", 1, 8)},
                                c.Floats("out", 2, 8));
       }},
      {"Rope",
       [](GuardedCall& c) {
         return c.device.Rope(c.stream, c.Floats("x", 1, 16), 8, {.table = c.Floats("rotation.table", kPositions, 8)},
                              *c.Table(), 0);
       }},
      {"StoreQkv",
       [](GuardedCall& c) {
         return c.device.StoreQkv(c.stream, c.Floats("qkv", 1, 32), kShape, c.Floats("q", 1, 16), *c.Table(), 0,
                                  c.Layer());
       }},
      {"Attention",
       [](GuardedCall& c) {
         return c.device.Attention(c.stream, c.Floats("q", 1, 16), kShape, *c.Table(), c.Layer(),
                                   c.Floats("out", 1, 16));
       }},
      {"AttendPieces",
       [](GuardedCall& c) {
         return c.device.AttendPieces(c.stream, c.Floats("q", 1, 16), kShape, *c.Table(), c.Layer(),
                                      c.Floats("partials", 1, 18));
       }},
      {"MergePieces",
       [](GuardedCall& c) {
         return c.device.MergePieces(c.stream, c.Floats("partials", 1, 18), kShape, *c.Table(), c.Floats("out", 1, 16));
       }},
      {"GatedActivate",
       [](GuardedCall& c) {
         return c.device.GatedActivate(c.stream, c.Floats("gate_up", 2, 16), Activation::kSilu, c.Floats("out", 2, 8));
       }},
      {"Activate",
       [](GuardedCall& c) {
         return c.device.Activate(c.stream, c.Floats("x", 2, 8), Activation::kRelu, c.Floats("out", 2, 8));
       }},
      {"Scale",
       [](GuardedCall& c) { return c.device.Scale(c.stream, c.Floats("x", 2, 8), 2, false, c.Floats("out", 2, 8)); }},
      {"SoftCap", [](GuardedCall& c) { return c.device.SoftCap(c.stream, c.Floats("x", 2, 8), 30); }},
      {"GatherRows",
       [](GuardedCall& c) { return c.device.GatherRows(c.stream, c.Floats("x", 2, 8), {1}, c.Floats("out", 1, 8)); }},
      {"QuantizeKv",
       [](GuardedCall& c) {
         return c.device.QuantizeKv(c.stream, c.Floats("rows", 2, 64), kQuant,
                                    c.Bytes("out", 2 * KvQuantRowBytes(64, kQuant)));
       }},
      {"DequantizeKv",
       [](GuardedCall& c) {
         return c.device.DequantizeKv(c.stream, c.Bytes("from", 2 * KvQuantRowBytes(64, kQuant)), kQuant,
                                      c.Floats("out", 2, 64));
       }},
      {"TopK",
       [](GuardedCall& c) {
         return c.device.TopK(c.stream, c.Floats("logits", 1, 16), 2, c.Floats("ids", 1, 2), c.Floats("values", 1, 2),
                              c.Floats("log_sum", 1, 1));
       }},
      {"Sample",
       [](GuardedCall& c) {
         return c.device.Sample(c.stream, c.Floats("logits", 1, 16), {SampleParams{}},
                                {c.Floats("tables.counts", 1, 16), c.Floats("tables.bias", 1, 16),
                                 c.Floats("tables.allowed", 1, 1)},
                                c.Floats("ids", 1, 1), c.Floats("values", 1, 1));
       }},
  };
  return calls;
}

// All matches of `pattern`, by their groups.
std::vector<std::smatch> AllMatches(const std::string& text, const char* pattern) {
  const std::regex regex(pattern);
  return {std::sregex_iterator(text.begin(), text.end(), regex), std::sregex_iterator()};
}

// The arguments in memory of each op, as the header declares them: tensors, ranges, and tensors in structs ("a.b").
std::map<std::string, std::set<std::string>> DeclaredArguments() {
  std::ifstream file("kernels/base/device.h");
  const std::string header{std::istreambuf_iterator<char>(file), {}};
  std::map<std::string, std::vector<std::string>> fields;
  for (const std::smatch& type : AllMatches(header, R"(struct (\w+) \{([^}]*(?:\{\}[^}]*)*)\n\};)")) {
    const std::string body = type[2];
    for (const std::smatch& field : AllMatches(body, R"(\b(?:Const|Mut)Tensor (\w+))")) {
      fields[type[1]].push_back(field[1]);
    }
  }
  std::map<std::string, std::set<std::string>> declared;
  for (const std::smatch& op : AllMatches(header, R"(virtual absl::Status (\w+)\(Stream& stream,([^)]*)\) = 0)")) {
    const std::string parameters = op[2];
    std::set<std::string>& arguments = declared[op[1]];
    for (const std::smatch& parameter : AllMatches(parameters, R"(const (\w+)& (\w+))")) {
      const std::string type = parameter[1], name = parameter[2];
      const bool memory = type.find("Tensor") != type.npos || type.find("BufferRef") != type.npos;
      if (memory) arguments.insert(name);
      for (const std::string& field : fields[type]) arguments.insert(name + "." + field);
    }
  }
  return declared;
}

class LinkGuardOps : public ::testing::TestWithParam<std::string> {
 protected:
  absl::Status Enqueue(Device& device, const std::string& on_host) {
    const auto stream = device.NewStream("op");
    GuardedCall call(device, *stream, on_host);
    const absl::Status status = OpCalls().at(GetParam())(call);
    EXPECT_TRUE(device.Record(*stream).Wait().ok());
    names_ = call.names();
    return status;
  }

  std::set<std::string> names_;  // of the arguments of the last call
};

TEST_P(LinkGuardOps, RefusesEachArgumentInHostMemory) {
  const auto device = DeviceBehindLink();
  ASSERT_EQ(Enqueue(*device, ""), absl::OkStatus());
  EXPECT_EQ(names_, DeclaredArguments()[GetParam()]) << "call it with all that it takes";
  for (const std::string& name : std::set<std::string>(names_)) {
    const absl::Status status = Enqueue(*device, name);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << name;
    EXPECT_THAT(std::string(status.message()), ::testing::StartsWith(GetParam() + ": " + name + " is not"));
  }
}

TEST_P(LinkGuardOps, TakesAllMemoryWithoutALink) {
  const auto device = *NewCpuDevice({});
  EXPECT_EQ(Enqueue(*device, "*"), absl::OkStatus());
}

// These three are what the link is for.
std::vector<std::string> OpsOfTheDevice() {
  std::vector<std::string> ops;
  for (const auto& [op, arguments] : DeclaredArguments()) {
    if (op != "Copy" && op != "CopyAll" && op != "ExchangeRows") ops.push_back(op);
  }
  return ops;
}

TEST(LinkGuard, TheseTestsCallEveryOp) {
  std::vector<std::string> called;
  for (const auto& [op, call] : OpCalls()) called.push_back(op);
  EXPECT_THAT(OpsOfTheDevice(), ::testing::ElementsAreArray(called));
}

INSTANTIATE_TEST_SUITE_P(Ops, LinkGuardOps, ::testing::ValuesIn([] {
                           std::vector<std::string> ops;
                           for (const auto& [op, call] : OpCalls()) ops.push_back(op);
                           return ops;
                         }()),
                         [](const auto& info) { return info.param; });

TEST(LinkGuard, OnlyMemoryThatTheDeviceAllocatedIsItsOwn) {
  const auto device = DeviceBehindLink(), other = DeviceBehindLink();
  const auto stream = device->NewStream("op");
  const auto activate = [&](std::shared_ptr<Buffer> memory) {
    const Tensor x = MakeTensor(BufferRef::Whole(std::move(memory)), DType::kF32, 1, 8);
    return device->Activate(*stream, x, Activation::kRelu, x).code();
  };
  EXPECT_EQ(activate(*device->Allocate(32, MemoryKind::kDevice)), absl::StatusCode::kOk);
  EXPECT_EQ(activate(*other->Allocate(32, MemoryKind::kDevice)), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(activate(*AllocateHostMemory(32, nullptr)), absl::StatusCode::kFailedPrecondition);
}

TEST(LinkGuard, CopyTakesAllMemory) {
  const auto device = DeviceBehindLink();
  const auto stream = device->NewStream("copy");
  for (const MemoryKind from : {MemoryKind::kHost, MemoryKind::kDevice}) {
    for (const MemoryKind to : {MemoryKind::kHost, MemoryKind::kDevice}) {
      const BufferRef source = BufferRef::Whole(*device->Allocate(8, from));
      const BufferRef target = BufferRef::Whole(*device->Allocate(8, to));
      std::memset(source.data(), 7, 8);
      ASSERT_TRUE(device->Copy(*stream, source, target).ok());
      ASSERT_TRUE(device->Record(*stream).Wait().ok());
      EXPECT_EQ(target.data()[7], std::byte{7});
    }
  }
}

}  // namespace
}  // namespace runahead
