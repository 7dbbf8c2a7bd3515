// In which order requests of several tenants have their turns. Pure.
//
// Start-time fair queueing over tokens: a request's turn is fixed when it comes. It begins where its tenant's last one
// ends, and not before what has its turn now; it ends its tokens, over the tenant's weight, later. The smallest
// beginning goes first. So tenants that wait share tokens by their weights, and who sends many at once waits behind
// himself: another's next request comes before all of them but those that have had their turn. What tenants had counts
// for as long as anybody waits.
//
// A client that makes up names gains a turn with each. So no more than 256 names that are not listed have turns of
// their own at once; further ones share those of the requests that name none.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace runahead {

// The lower, the sooner a request's turn comes.
enum class RequestPriority { kNormal, kLow };
inline constexpr int kRequestPriorities = 2;

// A request's place in the order; the smaller goes first. No two are equal.
struct Turn {
  RequestPriority priority = RequestPriority::kNormal;
  double begin = 0;    // tokens over weight
  int64_t number = 0;  // rising as requests come

  friend auto operator<=>(const Turn&, const Turn&) = default;
};

// What a request claims by which it has its turn.
struct Claim {
  std::string tenant = {};  // empty: the one of all that name none
  bool listed = false;      // the operator knows the tenant: the options name it
  double weight = 1;        // of the tenant, above 0
  RequestPriority priority = RequestPriority::kNormal;
  int64_t tokens = 1;  // of prompt and answer
};

// For one thread at a time.
class FairOrder {
 public:
  // All of normal priority come before all of low priority. Served or Left follows, once.
  Turn Come(const Claim& claim);
  // It has had its turn, or `had`, the turn of one that it overtook: who comes from now on does not come before that.
  void Served(const Turn& turn, const Turn& had);
  void Served(const Turn& turn) { Served(turn, turn); }
  // It left without having had it: its tokens are not its tenant's any more.
  void Left(const Turn& turn);

  // How many tenants have a request that was neither served nor has left. Names that share their turns count once.
  int64_t tenants() const;

 private:
  struct Tenant {
    bool listed = false;
    int64_t waiting = 0;                               // requests
    std::array<double, kRequestPriorities> ends = {};  // of its last request's turn
  };
  struct Request {
    std::string tenant;  // whose turns it takes
    double cost = 0;     // tokens over weight
  };

  std::string TenantOf(const Claim& claim);
  int64_t Unlisted() const;
  Request Take(const Turn& turn);
  void Forget();
  void Clear();

  std::array<double, kRequestPriorities> now_ = {};  // where the last that had its turn began
  std::map<std::string, Tenant> tenants_;
  std::map<int64_t, Request> waiting_;  // by the number of its turn
  int64_t next_ = 0;
};

}  // namespace runahead
