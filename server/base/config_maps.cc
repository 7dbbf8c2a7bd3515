// Lists: of strings (their limits), of numbers and of maps.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "server/base/config.h"

namespace runahead::config_internal {
namespace {

// "role (one of prefill, decode), address (host:port)"
std::string DescribeItem(const ConfigSchema& item) {
  return absl::StrJoin(item.keys(), ", ", [](std::string* out, const ConfigKey& key) {
    absl::StrAppend(out, key.name, " (", key.allowed, key.required ? "" : "; may be left out", ")");
  });
}

}  // namespace

absl::Status CheckItems(size_t items, const ListLimits& limits) {
  if (items >= limits.min_items && items <= limits.max_items) return absl::OkStatus();
  const char* const problem = items < limits.min_items ? "too few" : "too many";
  return absl::InvalidArgumentError(absl::StrCat("has ", items, items == 1 ? " item, " : " items, ", problem));
}

std::string DescribeCount(const ListLimits& limits) {
  if (limits.min_items > 0) return absl::StrCat(limits.min_items, " to ", limits.max_items);
  return absl::StrCat("up to ", limits.max_items);
}

ConfigKey MapsKey(std::string name, ListLimits limits, std::string doc, const ConfigSchema& example,
                  std::function<void()> clear, std::function<void(ConfigSchema&)> add) {
  const std::string allowed =
      absl::StrCat("a list of ", DescribeCount(limits), " maps, each with ", DescribeItem(example));
  auto set = [name, limits, allowed, clear = std::move(clear), add = std::move(add)](const ConfigValue& given) {
    absl::Status problem = given.kind == ConfigValue::Kind::kList ? CheckItems(given.items.size(), limits)
                                                                  : absl::InvalidArgumentError("is not a list");
    if (!problem.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(given.where, ": ", name, ": ", problem.message(), "; allowed: ", allowed));
    }
    clear();
    for (size_t i = 0; i < given.items.size(); ++i) {
      ConfigSchema item;
      item.SetKeyPrefix(absl::StrCat(name, "[", i, "]."));
      add(item);
      RUNAHEAD_RETURN_IF_ERROR(item.Apply(given.items[i]));
      RUNAHEAD_RETURN_IF_ERROR(item.Finish(given.items[i].where));
    }
    return absl::OkStatus();
  };
  return {.name = std::move(name),
          .doc = std::move(doc),
          .allowed = allowed,
          .value_name = "KEY=VALUE,..",
          .required = limits.required,
          .is_list = true,
          .is_maps = true,
          .set = std::move(set)};
}

}  // namespace runahead::config_internal

namespace runahead {
namespace {

// A list whose items are each set through `item`, which writes to `*last`.
template <typename Number>
ConfigKey NumbersKey(std::string name, ListLimits limits, std::string doc, ConfigKey item,
                     const std::shared_ptr<Number>& last, std::vector<Number>* values) {
  auto set = [limits, set_item = std::move(item.set), last, values](const ConfigValue& given) -> absl::Status {
    if (given.kind != ConfigValue::Kind::kList) return absl::InvalidArgumentError("is not a list");
    RUNAHEAD_RETURN_IF_ERROR(config_internal::CheckItems(given.items.size(), limits));
    std::vector<Number> numbers;
    for (size_t i = 0; i < given.items.size(); ++i) {
      const absl::Status status = set_item(given.items[i]);
      if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat("[", i, "]: ", status.message()));
      numbers.push_back(*last);
    }
    *values = std::move(numbers);
    return absl::OkStatus();
  };
  return {.name = std::move(name),
          .doc = std::move(doc),
          .allowed = absl::StrCat("a list of ", config_internal::DescribeCount(limits), " items, each ", item.allowed),
          .value_name = item.value_name,
          .default_text = absl::StrJoin(*values, ", "),
          .required = limits.required,
          .is_list = true,
          .set = std::move(set)};
}

}  // namespace

void ConfigSchema::Ints(std::string key, std::vector<int64_t>* values, IntLimits each, ListLimits limits,
                        std::string doc) {
  const auto last = std::make_shared<int64_t>(0);
  ConfigSchema item;
  item.Int("item", last.get(), each, "");
  Add(NumbersKey(std::move(key), limits, std::move(doc), item.keys()[0], last, values));
}

void ConfigSchema::Doubles(std::string key, std::vector<double>* values, DoubleLimits each, ListLimits limits,
                           std::string doc) {
  const auto last = std::make_shared<double>(0);
  ConfigSchema item;
  item.Double("item", last.get(), each, "");
  Add(NumbersKey(std::move(key), limits, std::move(doc), item.keys()[0], last, values));
}

}  // namespace runahead
