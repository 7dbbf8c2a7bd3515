// Keeps UCX from its own end when descriptors run out.
#pragma once

namespace runahead {

// UCX 1.13 closes its listening socket for good when accept() fails, or fills the log with that failure as fast as it
// can, and it has no bound to how many connections it takes. So this file brings an accept() of its own, which in this
// program comes before libc's, and hence is UCX's too: a connection that would take one of the descriptors that are
// kept (descriptor_limit.h) is closed at once, and looks to the caller as if there had been none (EAGAIN).
//
// To be called before UCX listens; any thread, any number of times.
void GuardUcxAccept();

}  // namespace runahead
