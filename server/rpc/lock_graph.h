// What Abseil keeps of the locks of a process.
#pragma once

namespace runahead {

// For the whole process. Debian's Abseil was built to look for deadlocks: it keeps a graph of all mutexes, of which
// each call of gRPC has some, in memory that it never gives back, and locks all of it whenever one of them is locked.
// From now on it keeps none. Any thread, any number of times.
void KeepNoLockGraph();

}  // namespace runahead
