// What a layer costs on each worker of a chain and what each link between them costs: what the simulator runs on and
// the fit finds. Pure data. The fields are those of a cost file (docs/planning.md), by the same names.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"

namespace runahead {

// Traffic of others on a link: a transfer takes, with this probability, a factor longer that is drawn evenly from
// [1, max_factor]. A draw depends on the seed and on which transfer it is, never on the order of the simulation.
struct LinkSlowdown {
  double probability = 0;
  double max_factor = 1;
  uint64_t seed = 0;
};

// A link carries one frame at a time in each direction; a frame occupies it for latency_s + bytes / bytes_per_s.
struct LinkCost {
  double latency_s = 0;
  double bytes_per_s = std::numeric_limits<double>::infinity();
  LinkSlowdown slowdown = {};
};

// Links of one host that share a bus. What they carry in one direction at a time shares bytes_per_s: evenly, but none
// gets more than it can carry by itself, and what it leaves is the others'. Latencies do not occupy the bus.
struct BusCost {
  std::vector<int> links;  // by their place in the chain, as CostModel::links; empty: all of the chain
  double bytes_per_s = std::numeric_limits<double>::infinity();
};

// Seconds are for all layers together, as measured on one worker of factor 1; a layer takes its share of them:
//   max(floor_s, fixed_s + linear_s_per_token * tokens + attention_s_per_token_pair * pairs) / layers
// where pairs counts what the attention kernel computes: queries times keys, or only those that causality needs.
struct CostModel {
  int64_t layers = 1;
  double kv_bytes_per_token = 0;  // all layers, K and V
  double fixed_s = 0;
  double linear_s_per_token = 0;
  double attention_s_per_token_pair = 0;
  bool causal_skip = false;  // the kernel computes nothing above the diagonal; false: the whole rectangle

  // So many of the layers, evenly among the others, attend through a window: a query sees itself and the window - 1
  // tokens before it. There pairs are what the window leaves, whatever causal_skip says, and a frame holds what the
  // receiver or one behind it sees. An all-gather carries all the same; beside windows it computes no dense rectangle.
  int64_t window_layers = 0;
  int64_t window = 0;  // tokens; 0 without window_layers

  // The least that the layers take however few the tokens: starting kernels, or reading the weights. What is started
  // while the device still works adds nothing, hence a floor beside fixed_s.
  double floor_s = 0;
  double logits_s = 0;  // the last worker alone, after its last layer

  // Share of fixed_s and linear_s_per_token until K and V of a layer are there to be sent. Default: 3 h^2 of
  // 4 h^2 + 3 h f multiplications in Llama-7B, h = 4096, f = 11008.
  double qkv_share = 0.25;

  // A worker takes frames of layer l once it has finished layer l - receive_ahead_layers. 1 is the paper's schedule,
  // where receiving overlaps the QKV projection of that very layer. Our prefill stage posts receives with its layers,
  // two ahead (kRunaheadReceiveAhead): what a cost file or a fit file means that does not say it.
  int64_t receive_ahead_layers = 1;

  std::vector<LinkCost> links = std::vector<LinkCost>(1);  // [1]: all alike; else link i is after worker i
  std::vector<BusCost> buses;          // a link is on one at most; what a chain lacks of their links does not matter
  std::vector<double> worker_factors;  // empty: all 1; else worker i takes worker_factors[i] times as long

  // How many times as long each takes in a chain of two workers or more, where the others work too: those of one host
  // share its memory and its power.
  double together_factor = 1;
};

inline constexpr int64_t kRunaheadReceiveAhead = 2;

// INVALID_ARGUMENT naming the field: a number that is negative, not finite or out of range, fewer factors or links
// than a chain of `width` workers has, or a link on two buses.
absl::Status CheckCostModel(const CostModel& model, int width);

inline const LinkCost& LinkOf(const CostModel& model, int link) {
  return model.links.size() == 1 ? model.links[0] : model.links[link];
}

// The place in model.buses of the bus that a link is on, or -1.
int BusOf(const CostModel& model, int link);

// One layer of one worker, in the two steps between which it waits for the KV before its own.
struct LayerTimes {
  double qkv_s = 0;   // until its K and V may be sent
  double rest_s = 0;  // attention and all that follows
};

// `pairs`: of query and key that the worker computes in a layer. 0 <= worker < width of a checked model.
LayerTimes TimesOfLayer(const CostModel& model, int worker, int64_t tokens, int64_t pairs);

// Pairs of query and key for the queries [begin, end) over the keys [0, keys), end <= keys: the rectangle, or what lies
// on and below the diagonal.
int64_t AttentionPairs(int64_t begin, int64_t end, int64_t keys, bool causal_skip);

// The same through a window of at least 1: min(p + 1, window) for the query at p.
int64_t WindowPairs(int64_t begin, int64_t end, int64_t window);

// Whether layer `layer` of a checked model is one of its window_layers.
bool IsWindowLayer(const CostModel& model, int64_t layer);

}  // namespace runahead
