// Options of a process: declared once, then read from a YAML file, from flags, and shown in --help.
//
//   struct RouterOptions { int64_t max_queue = 256; std::vector<WorkerEntry> workers; };
//   void DeclareOptions(ConfigSchema& schema, RouterOptions& options) {
//     schema.Int("max_queue", &options.max_queue, {.min = 1, .max = 65536}, "Requests that may wait");
//     schema.Maps<WorkerEntry>("workers", &options.workers, DeclareWorkerEntry, {.required = true}, "The workers");
//   }
//
// What a value holds before reading is its default. Later sources win: default, file, flag. Anything not declared,
// repeated, of the wrong type or impossible is an INVALID_ARGUMENT that names the place, the key and what is allowed.
// Not thread-safe; the declared variables must outlive the schema.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/base/config_value.h"
#include "server/base/limits.h"

namespace runahead {

struct IntLimits {
  int64_t min = std::numeric_limits<int64_t>::min();
  int64_t max = std::numeric_limits<int64_t>::max();
  bool required = false;
};

struct DoubleLimits {  // finite numbers only
  double min = std::numeric_limits<double>::lowest();
  double max = std::numeric_limits<double>::max();
  bool required = false;
};

struct DurationLimits {
  absl::Duration min = absl::ZeroDuration();
  absl::Duration max = kLongestLatency;
  bool required = false;
};

struct StringLimits {
  std::vector<std::string> one_of = {};  // empty: anything
  bool allow_empty = true;
  bool required = false;
  const char* value_name = "TEXT";  // as ConfigKey's
};

struct AddressLimits {
  bool any_port = false;  // whether port 0 (any free port) is allowed
  bool required = false;
};

struct ListLimits {
  size_t min_items = 0;
  size_t max_items = 4096;
  bool required = false;
};

// A declared key, as --help and the flags see it.
struct ConfigKey {
  std::string name = {};          // snake_case, as in the file; the flag is --with-dashes
  std::string doc = {};           // one sentence without a full stop
  std::string allowed = {};       // "a whole number from 1 to 65536"
  std::string value_name = {};    // "N": stands for the value in --help
  bool obvious = false;           // "text": --help need not say what is allowed
  std::string default_text = {};  // "" where there is none worth showing
  bool required = false;
  bool flag_only = false;  // not to be written in a file
  bool is_bool = false;    // the flag may stand without a value
  bool is_list = false;    // the flag may be repeated
  bool is_maps = false;    // items are maps, as flag role=prefill,address=...; its errors carry place and key
  std::function<absl::Status(const ConfigValue&)> set = {};  // errors come without place, key and what is allowed
};

class ConfigSchema {
 public:
  void Int(std::string key, int64_t* value, IntLimits limits, std::string doc);
  void Int(std::string key, int* value, IntLimits limits, std::string doc);  // limits are narrowed to those of int
  void Double(std::string key, double* value, DoubleLimits limits, std::string doc);
  void Bool(std::string key, bool* value, std::string doc);  // true or false
  void String(std::string key, std::string* value, StringLimits limits, std::string doc);
  void Bytes(std::string key, int64_t* value, IntLimits limits, std::string doc);  // 1048576, 512MiB, 8GiB, 2GB
  void Duration(std::string key, absl::Duration* value, DurationLimits limits, std::string doc);  // 250ms, 30s, 1m30s
  void Address(std::string key, std::string* value, AddressLimits limits, std::string doc);       // host:port
  void Strings(std::string key, std::vector<std::string>* values, ListLimits limits, std::string doc);
  // Lists of numbers, each within `each`.
  void Ints(std::string key, std::vector<int64_t>* values, IntLimits each, ListLimits limits, std::string doc);
  void Doubles(std::string key, std::vector<double>* values, DoubleLimits each, ListLimits limits, std::string doc);

  // A list of maps, each with the keys that `declare(item_schema, item)` declares. As flag, one item a time:
  // --workers role=prefill,address=127.0.0.1:9001. A flag replaces the whole list of the file.
  template <typename Item>
  void Maps(std::string key, std::vector<Item>* items, void (*declare)(ConfigSchema&, Item&), ListLimits limits,
            std::string doc);

  // Puts `prefix` ("workers[1].") before every key in messages.
  void SetKeyPrefix(std::string prefix) { prefix_ = std::move(prefix); }

  // Where the map that is applied stands ("router.yaml:12"), for complaints about several keys together.
  void Place(std::string* where) { place_ = where; }

  // Makes the key declared last a flag that may not stand in a file (file descriptors and the like).
  void FlagOnly();

  // A key that is no option any more. `still`, which says what happens anyway, may stay where it was written; any other
  // value is refused with `why`, a sentence without a full stop that says what to do instead.
  void Gone(std::string key, std::string still, std::string why);

  // Applies a map of keys (a whole file, or one item of Maps).
  absl::Status Apply(const ConfigValue& map);

  // Applies one flag. `key` is a declared name.
  absl::Status ApplyFlag(absl::string_view key, const ConfigValue& value);

  // The first required key that nobody has set; none: null.
  const ConfigKey* FirstMissing() const;

  // Complains about it. `where` names what was read ("router.yaml").
  absl::Status Finish(absl::string_view where) const;

  const std::vector<ConfigKey>& keys() const { return keys_; }
  const std::vector<ConfigKey>& gone() const { return gone_; }  // not among keys(), but read as they are

 private:
  void Add(ConfigKey key);
  const ConfigKey* Find(absl::string_view name) const;
  std::string UnknownKey(absl::string_view name) const;
  absl::Status Complain(absl::string_view where, const ConfigKey& key, const absl::Status& problem) const;

  std::string prefix_;
  std::string* place_ = nullptr;
  std::vector<ConfigKey> keys_, gone_;
  absl::flat_hash_set<std::string> set_;
};

inline constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;  // far above any real file

// Reads `path` into what `schema` declares; does not call Finish(). NOT_FOUND, PERMISSION_DENIED or INVALID_ARGUMENT
// name the file, and the line where there is one.
absl::Status ReadConfigFile(const std::string& path, ConfigSchema& schema);

// The same from memory; `name` stands for the file in messages.
absl::Status ReadConfigText(const std::string& text, const std::string& name, ConfigSchema& schema);

// What a YAML text says before a schema looks at it, for files that also come in other forms.
absl::StatusOr<ConfigValue> ParseConfigText(const std::string& text, const std::string& name);

// "max_queue" -> "--max-queue".
std::string FlagOfKey(absl::string_view key);

namespace config_internal {
absl::Status CheckItems(size_t items, const ListLimits& limits);
std::string DescribeCount(const ListLimits& limits);
// A key whose items are maps; `example` has an item's keys, `add` appends an item and declares it in the given schema.
ConfigKey MapsKey(std::string name, ListLimits limits, std::string doc, const ConfigSchema& example,
                  std::function<void()> clear, std::function<void(ConfigSchema&)> add);
}  // namespace config_internal

template <typename Item>
void ConfigSchema::Maps(std::string key, std::vector<Item>* items, void (*declare)(ConfigSchema&, Item&),
                        ListLimits limits, std::string doc) {
  Item item;
  ConfigSchema example;
  declare(example, item);
  Add(config_internal::MapsKey(
      std::move(key), limits, std::move(doc), example, [items] { items->clear(); },
      [items, declare](ConfigSchema& schema) { declare(schema, items->emplace_back()); }));
}

}  // namespace runahead
