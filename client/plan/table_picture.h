// A partition table as a picture. Pure.
#pragma once

#include <string>

#include "server/base/partition_file.h"

namespace runahead {

// An SVG document: for each width a bar a length, cut as the prompt is; below, where times are known, the time to first
// token over the width, a line a length, on a logarithmic scale. `file` is one that ParsePartitionFile accepts.
std::string TableSvg(const PartitionFile& file);

}  // namespace runahead
