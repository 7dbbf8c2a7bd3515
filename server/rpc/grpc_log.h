// What gRPC has to say.
#pragma once

namespace runahead {

// From now on gRPC writes into our log instead of to stderr, and only what it says before it aborts is an error: what
// goes wrong is in a status too, and said by whoever gets it. Any thread, any number of times.
void RouteGrpcLog();
// The same, and that handshakes of TLS failed is a rare warning: a server has no status of them.
void RouteGrpcLogOfServer();

}  // namespace runahead
