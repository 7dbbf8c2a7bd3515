#include "server/grammar/schema_doubles.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/grammar/schema_place.h"

namespace runahead {
namespace {

// What nlohmann's parser calls while it reads; false ends it.
class DoubledNames {
 public:
  bool null() { return Value(); }
  bool boolean(bool) { return Value(); }
  bool number_integer(int64_t) { return Value(); }
  bool number_unsigned(uint64_t) { return Value(); }
  bool number_float(double, const std::string&) { return Value(); }
  bool string(std::string&) { return Value(); }
  bool binary(std::vector<uint8_t>&) { return Value(); }
  bool start_object(size_t) { return Open(/*is_array=*/false); }
  bool start_array(size_t) { return Open(/*is_array=*/true); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) { return false; }

  bool key(std::string& name) {
    const auto [at, is_new] = open_.back().names.insert(name);
    open_.back().name = name;
    if (!is_new) status_ = RefuseAt(Place(), "it is given twice");
    return is_new;
  }

  const absl::Status& status() const { return status_; }

 private:
  // An array or object that has begun.
  struct Level {
    bool is_array;
    size_t items = 0;  // of an array, before the one that is read
    std::set<std::string> names = {};
    std::string name = {};  // of the member that is read
  };

  bool Value() {
    if (!open_.empty() && open_.back().is_array) ++open_.back().items;
    return true;
  }

  bool Open(bool is_array) {
    open_.push_back({is_array});
    return true;
  }

  bool Close() {
    open_.pop_back();
    return Value();
  }

  std::string Place() const {
    std::string place;
    for (const Level& level : open_) place = PlaceBelow(place, level.is_array ? absl::StrCat(level.items) : level.name);
    return place;
  }

  std::vector<Level> open_;
  absl::Status status_;
};

}  // namespace

absl::Status RefuseDoubledNames(absl::string_view text) {
  DoubledNames names;
  nlohmann::json::sax_parse(text.begin(), text.end(), &names);
  return names.status();
}

}  // namespace runahead
