// The kinds of threads that routers and workers have, by name: which of them tests freeze, and why the others may stand
// still.
#pragma once

#include <sys/types.h>

#include <array>
#include <string_view>

namespace runahead {

// Threads of a prefill worker: its prompts wait for each.
inline constexpr std::array kFrozenInPrefill = {"stage", "prefill", "control"};
// Threads of a decode worker: its sequences wait for each.
inline constexpr std::array kFrozenInDecode = {"decode steps", "decode"};
// The same in a decode worker that brings KV over a link.
inline constexpr std::array kFrozenInKvpr = {"kvpr load", "kvpr store", "kvpr host lane"};
// A thread at one end of a hand-off or an edge.
struct FrozenOf {
  std::string_view worker, thread;
};
inline constexpr std::array<FrozenOf, 3> kFrozenInHandoff = {
    {{"prefill-0", "links"}, {"decode-0", "links"}, {"decode-0", "arrival"}}};
inline constexpr std::array<FrozenOf, 2> kFrozenInChain = {{{"prefill-0", "links"}, {"prefill-1", "links"}}};
// Threads of a worker that computes prompts and decodes them. They bring its slices to its own store.
inline constexpr std::array kFrozenInBoth = {"copies"};
// The same where its decode computes no rows of prompts: a chain begins behind what its own store knows.
inline constexpr std::array kFrozenInPrefix = {"prefix copies"};

// Fails where a thread of the process is of none of these kinds, and of none that may stand still.
void ExpectKnownThreads(pid_t pid);

}  // namespace runahead
