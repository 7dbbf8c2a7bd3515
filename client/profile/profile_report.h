// What `runahead profile` says of a line, for people and for programs. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "client/profile/line_profile.h"
#include "client/profile/line_timing.h"
#include "runahead/v1/inference.pb.h"

namespace runahead {

// Where it was measured.
struct ProfiledLine {
  std::string model;
  std::string dtype;
  std::vector<std::string> workers;  // head first
  std::string date;
  std::vector<v1::LaneProfile> decode = {};  // of decode workers whose KV comes over a link
};

// Constants, predictions beside what was measured, workers and links; and what is to be doubted.
std::string ProfileText(const ProfiledLine& line, const LineTimes& times, const LineProfile& profile);

// The head of the cost file: where it comes from and what it cannot say, a line each.
std::vector<std::string> ProfileComments(const ProfiledLine& line, const LineTimes& times, const LineProfile& profile);

// One object on one line without a newline. `file`: empty where none was written.
std::string ProfileJson(const std::string& file, const ProfiledLine& line, const LineTimes& times,
                        const LineProfile& profile);

}  // namespace runahead
