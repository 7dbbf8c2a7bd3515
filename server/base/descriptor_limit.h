// How many files and sockets this process may have open, and which of them clients leave to it.
//
// The system gives the lowest descriptor that is free. So a connection whose descriptor is `limit - n` or above says
// that no more than `n` are free, whoever has taken the others.
#pragma once

namespace runahead {

// Raises the soft limit to the hard one, at most to a million. Call it first in main. A limit that cannot be raised
// stays.
void RaiseDescriptorLimit();

// The soft limit as it is now.
int DescriptorLimit();

// How many of the last descriptors are not for connections of clients: a quarter, from 16 to 4096. They are for links,
// connections to workers and files, for the metrics port, and for the process's own probe.
int KeptDescriptors();

// Whether fewer than `kept` descriptors are left beside `fd`, the newest.
bool IsAmongTheLast(int fd, int kept);

}  // namespace runahead
