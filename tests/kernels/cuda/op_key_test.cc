// Launches that differ in anything they are told must not be taken for each other by a step that comes again.
#include "kernels/cuda/op_key.h"

#include <gtest/gtest.h>

#include <cstring>
#include <new>

#include "kernels/cuda/flash_attention.h"
#include "kernels/cuda/kernels.h"

namespace runahead {
namespace {

template <typename T>
std::string KeyOf(const T& value) {
  std::string key;
  AppendToKey(value, key);
  return key;
}

// Walks over all scalars of a value, however deep in structs, and changes the one whose number is `change`.
struct ScalarWalk {
  int change = -1;
  int seen = 0;

  template <typename T>
  void operator()(T& value) {
    if constexpr (std::is_pointer_v<T>) {
      if (seen++ == change) value = reinterpret_cast<T>(reinterpret_cast<uintptr_t>(value) + 64);
    } else if constexpr (std::is_same_v<T, bool>) {
      if (seen++ == change) value = !value;
    } else if constexpr (std::is_scalar_v<T>) {
      if (seen++ == change) value = static_cast<T>(static_cast<int>(value) + 1);
    } else {
      ForFields(value, [this](auto& field) { (*this)(field); });
    }
  }
  template <typename T>
  void operator()(std::optional<T>& value) {
    if (seen++ == change) value = T();
  }
};

template <typename... Params>
void ExpectEveryArgumentCounts(cudaError_t (*launch)(Params...)) {
  using Arguments = std::tuple<std::decay_t<Params>...>;
  const auto key_of = [&](const Arguments& arguments) {
    std::string key;
    std::apply([&](const auto&... args) { BoundLaunch(launch, args...).AppendKey(key); }, arguments);
    return key;
  };
  const auto walk = [](Arguments& arguments, ScalarWalk scalars) {
    std::apply([&](auto&... args) { (scalars(args), ...); }, arguments);
    return scalars.seen;
  };
  Arguments same{};
  const int scalars = walk(same, {});
  EXPECT_GE(scalars, static_cast<int>(sizeof...(Params)));
  EXPECT_EQ(key_of(same), key_of(Arguments{}));
  for (int i = 0; i < scalars; ++i) {
    Arguments other{};
    walk(other, {.change = i});
    EXPECT_NE(key_of(other), key_of(same)) << "scalar " << i << " of " << scalars;
  }
}

TEST(OpKey, EveryArgumentOfEveryLaunchCounts) {
  ExpectEveryArgumentCounts(&cudaMemcpyAsync);
  ExpectEveryArgumentCounts(&LaunchEmbed);
  ExpectEveryArgumentCounts(&LaunchRmsNorm);
  ExpectEveryArgumentCounts(&LaunchHeadNorm);
  ExpectEveryArgumentCounts(&LaunchLayerNorm);
  ExpectEveryArgumentCounts(&LaunchRope);
  ExpectEveryArgumentCounts(&LaunchStoreQkv);
  ExpectEveryArgumentCounts(&LaunchGatedActivate);
  ExpectEveryArgumentCounts(&LaunchActivate);
  ExpectEveryArgumentCounts(&LaunchScale);
  ExpectEveryArgumentCounts(&LaunchSoftCap);
  ExpectEveryArgumentCounts(&LaunchGatherRows);
  ExpectEveryArgumentCounts(&LaunchExchangeRows);
  ExpectEveryArgumentCounts(&LaunchQuantizeKv);
  ExpectEveryArgumentCounts(&LaunchDequantizeKv);
  ExpectEveryArgumentCounts(&LaunchTopK);
  ExpectEveryArgumentCounts(&LaunchSample);
  ExpectEveryArgumentCounts(&LaunchPlainAttention);
  ExpectEveryArgumentCounts(&LaunchPlainPieces);
  ExpectEveryArgumentCounts(&LaunchMergePieces);
  ExpectEveryArgumentCounts(&LaunchFlashPrefill);
  ExpectEveryArgumentCounts(&LaunchFlashPieces);
}

class SomePlan final : public GemmPlan {
 public:
  using GemmPlan::GemmPlan;
  size_t workspace_bytes() const override { return 0; }
  cudaError_t Run(const GemmOperands&, cudaStream_t) const override { return cudaSuccess; }
};

TEST(OpKey, APlanIsItsShape) {
  const auto key_of = [](const GemmShape& shape) {
    return KeyOf(std::shared_ptr<const GemmPlan>(std::make_shared<SomePlan>(shape)));
  };
  const GemmShape same;
  ScalarWalk all;
  GemmShape walked;
  all(walked);
  EXPECT_EQ(key_of(same), key_of(GemmShape{}));
  for (int i = 0; i < all.seen; ++i) {
    GemmShape other;
    ScalarWalk{.change = i}(other);
    EXPECT_NE(key_of(other), key_of(same)) << "scalar " << i;
  }
  EXPECT_NE(key_of({.activation = Activation::kSilu}), key_of({.activation = Activation::kRelu}));
  EXPECT_NE(KeyOf(GemmOperands{.bias = reinterpret_cast<float*>(64)}), KeyOf(GemmOperands{}));
}

cudaError_t LaunchThis(int, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t LaunchThat(int, cudaStream_t) {
  return cudaErrorInvalidValue;
}

TEST(OpKey, TheLaunchItselfCounts) {
  std::string first, second;
  BoundLaunch(&LaunchThis, 1, nullptr).AppendKey(first);
  BoundLaunch(&LaunchThat, 1, nullptr).AppendKey(second);
  EXPECT_NE(first, second);
}

// A field that somebody adds to a struct of arguments counts without a word about it.
struct Before {
  float scale = 1;
  CudaMatrix q = {};
};
struct After {
  float scale = 1;
  CudaMatrix q = {};
  int added = 0;
};
static_assert(FieldCount<Before>() == 2 && FieldCount<After>() == 3 && FieldCount<CudaMatrix>() == 5);

TEST(OpKey, AFieldMoreCounts) {
  EXPECT_NE(KeyOf(After{.added = 1}), KeyOf(After{}));
  EXPECT_EQ(KeyOf(After{}).size(), KeyOf(Before{}).size() + sizeof(int));
}

struct WithAGap {
  char first;
  int64_t second;
};

TEST(OpKey, WhatLiesBetweenFieldsDoesNotCount) {
  std::string keys[2];
  for (int i = 0; i < 2; ++i) {
    alignas(WithAGap) std::byte memory[sizeof(WithAGap)];
    std::memset(memory, i == 0 ? 0x00 : 0xff, sizeof(memory));
    auto* const value = new (memory) WithAGap;
    value->first = 'a';
    value->second = 7;
    AppendToKey(*value, keys[i]);
  }
  EXPECT_EQ(keys[0], keys[1]);
  EXPECT_EQ(keys[0].size(), 9u);
}

}  // namespace
}  // namespace runahead
