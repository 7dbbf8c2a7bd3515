// A thread's name, as /proc/PID/task/TID/comm and `top -H` show it.
#pragma once

#include <pthread.h>

namespace runahead {

// Of the calling thread. At most 15 characters.
inline void NameThread(const char* name) {
  pthread_setname_np(pthread_self(), name);
}

}  // namespace runahead
