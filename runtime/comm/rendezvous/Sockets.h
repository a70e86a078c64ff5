// TCP sockets of a store (private to this folder).
#pragma once

#include <string>

namespace merak::runtime {

void setNonBlocking(int socket);
// Small messages go out at once.
void setPrompt(int socket);

// A connected, blocking socket to one of the host's addresses, or -1.
int connectTo(const std::string &host, int port, double seconds);

} // namespace merak::runtime
