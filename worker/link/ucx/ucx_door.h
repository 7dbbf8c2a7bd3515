// Shuts the port of a UCX listener before the listener goes.
#pragma once

#include <functional>
#include <string>

namespace runahead {

// A thread of UCX's own calls a listener when the first message of a connection to it has come, even if the listener is
// gone: the process ends by a segmentation fault (1.13, and reported of 1.19). So nothing may be on the way to it. This
// lets the kernel drop what comes to the listener at `address` ("10.0.0.1:4711"), and to the connections that it has,
// from now on, and returns when UCX has read what came before, or after half a second. The caller's
// endpoints are closed; `progress` is called meanwhile. Where UCX listens with something else than sockets nothing
// happens.
void ShutDoor(const std::string& address, const std::function<void()>& progress);

}  // namespace runahead
