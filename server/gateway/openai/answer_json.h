// What an answer says of its calls, beside their text.
#pragma once

#include <cstdint>
#include <string>

#include "runahead/v1/inference.pb.h"

namespace runahead {

// Of all calls of a request.
struct UsageSum {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
};

// {"prompt_tokens","completion_tokens","total_tokens","prompt_tokens_details":{"cached_tokens"}}.
std::string UsageJson(const UsageSum& usage);

// What only this service says, of one call: {"request_id","seed","ttft_s","tpot_s","stages":{NAME: seconds},
// "failovers","plan":{"schedule","workers","parts","decode_worker","known_tokens"}}.
std::string ServiceJson(const v1::Started& started, const v1::Finished& finished);

}  // namespace runahead
