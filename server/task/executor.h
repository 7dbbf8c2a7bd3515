// Where coroutines run.
#pragma once

#include <coroutine>

namespace runahead {

// Thread-safe.
class Executor {
 public:
  // Resumes `ready` soon, on a thread of this executor, never in here. May be called under any lock. The executor must
  // outlive what it is to resume.
  virtual void Post(std::coroutine_handle<> ready) = 0;

 protected:
  ~Executor() = default;
};

}  // namespace runahead
