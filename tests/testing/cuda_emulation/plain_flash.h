// What stands for FlashInfer's kernels on the emulated GPU.
#pragma once

#include <cstdint>

namespace runahead {

// How often a head's query was attended over a piece of KV by the kernel in place of FlashInfer's decode, since the
// process began, replayed graphs included. Thread-safe.
int64_t PlainFlashPieces();

}  // namespace runahead
