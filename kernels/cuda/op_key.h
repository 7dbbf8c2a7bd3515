// What makes two launches the same but for the contents of the memory they read: bytes made of all their arguments.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "kernels/cuda/gemm.h"

namespace runahead {

// Stands for an argument of any type, where it is only asked whether there is room for one.
struct AnyField {
  template <typename T>
  operator T() const;
};

template <typename T, size_t... kIndex>
constexpr bool HasFields(std::index_sequence<kIndex...>) {
  return requires {
    T{(static_cast<void>(kIndex), AnyField{})...};
  };
}

// How many fields an aggregate has.
template <typename T, size_t kCount = 0>
constexpr size_t FieldCount() {
  if constexpr (HasFields<T>(std::make_index_sequence<kCount + 1>())) {
    return FieldCount<T, kCount + 1>();
  } else {
    return kCount;
  }
}

// Calls function(field) for each field of an aggregate, in their order. A binding with fewer names than there are
// fields does not compile, so none can be left out.
template <typename T, typename Function>
void ForFields(T& v, const Function& function) {
  constexpr size_t kCount = FieldCount<std::remove_const_t<T>>();
  static_assert(kCount >= 1 && kCount <= 16, "give this function a case for so many fields");
  const auto all = [&](auto&... fields) { (function(fields), ...); };
  // clang-format off
  if constexpr (kCount == 1) { auto& [a] = v; all(a); }
  if constexpr (kCount == 2) { auto& [a, b] = v; all(a, b); }
  if constexpr (kCount == 3) { auto& [a, b, c] = v; all(a, b, c); }
  if constexpr (kCount == 4) { auto& [a, b, c, d] = v; all(a, b, c, d); }
  if constexpr (kCount == 5) { auto& [a, b, c, d, e] = v; all(a, b, c, d, e); }
  if constexpr (kCount == 6) { auto& [a, b, c, d, e, f] = v; all(a, b, c, d, e, f); }
  if constexpr (kCount == 7) { auto& [a, b, c, d, e, f, g] = v; all(a, b, c, d, e, f, g); }
  if constexpr (kCount == 8) { auto& [a, b, c, d, e, f, g, h] = v; all(a, b, c, d, e, f, g, h); }
  if constexpr (kCount == 9) { auto& [a, b, c, d, e, f, g, h, i] = v; all(a, b, c, d, e, f, g, h, i); }
  if constexpr (kCount == 10) { auto& [a, b, c, d, e, f, g, h, i, j] = v; all(a, b, c, d, e, f, g, h, i, j); }
  if constexpr (kCount == 11) { auto& [a, b, c, d, e, f, g, h, i, j, k] = v; all(a, b, c, d, e, f, g, h, i, j, k); }
  if constexpr (kCount == 12) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l] = v; all(a, b, c, d, e, f, g, h, i, j, k, l);
  }
  if constexpr (kCount == 13) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m] = v; all(a, b, c, d, e, f, g, h, i, j, k, l, m);
  }
  if constexpr (kCount == 14) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = v; all(a, b, c, d, e, f, g, h, i, j, k, l, m, n);
  }
  if constexpr (kCount == 15) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = v; all(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o);
  }
  if constexpr (kCount == 16) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = v; all(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p);
  }
  // clang-format on
}

// Appends bytes that differ where the value does. Structs count field by field: what lies between fields has any value.
template <typename T>
void AppendToKey(const T& value, std::string& key);
template <typename T>
void AppendToKey(const std::optional<T>& value, std::string& key) {
  AppendToKey(value.has_value(), key);
  AppendToKey(value.value_or(T()), key);
}
// A plan is all that its shape makes of it. Its address says nothing: another may have it later.
inline void AppendToKey(const std::shared_ptr<const GemmPlan>& plan, std::string& key) {
  AppendToKey(plan->shape(), key);
}
template <typename T>
void AppendToKey(const T& value, std::string& key) {
  if constexpr (std::is_scalar_v<T>) {
    key.append(reinterpret_cast<const char*>(&value), sizeof(value));
  } else {
    static_assert(std::is_aggregate_v<T>, "say here what makes two of these the same");
    ForFields(value, [&key](const auto& field) { AppendToKey(field, key); });
  }
}

// A launch function with all of its arguments, the stream among them: what runs, and what it is known by, are one list.
// The launch comes first in its bytes, and says how long they are: so bytes of several, one after the other, are not
// those of others.
template <typename... Params>
class BoundLaunch {
 public:
  template <typename... Args>
  explicit BoundLaunch(cudaError_t (*launch)(Params...), const Args&... args) : launch_(launch), args_(args...) {}
  cudaError_t operator()() const { return std::apply(launch_, args_); }
  void AppendKey(std::string& key) const {
    AppendToKey(launch_, key);
    std::apply([&key](const auto&... args) { (AppendToKey(args, key), ...); }, args_);
  }

 private:
  cudaError_t (*launch_)(Params...);
  std::tuple<std::decay_t<Params>...> args_;
};

}  // namespace runahead
