// What xgrammar says of a grammar while it reads one.
#pragma once

#include <string>

namespace runahead {

// While one lives, warnings on this thread are kept. xgrammar warns where it leaves something out, or takes it for
// something else. Its errors are exceptions.
class XgrammarWarnings {
 public:
  XgrammarWarnings();
  ~XgrammarWarnings();
  XgrammarWarnings(const XgrammarWarnings&) = delete;
  XgrammarWarnings& operator=(const XgrammarWarnings&) = delete;

  const std::string& first() const { return first_; }  // empty: there was none

  void Add(const std::string& message);

 private:
  std::string first_;
};

}  // namespace runahead
