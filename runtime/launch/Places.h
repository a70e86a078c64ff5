// Where the devices of a run are that a launcher starts on hosts. Devices have
// numbers in the order of all hosts, "a:2,b:1,c:1": 0 and 1 on a, 2 on b, 3 on
// c. A plan numbers those of the hosts that are left, and names which of them
// have ranks (`devices`); so without b its device 2 is device 3 of them all.
#pragma once

#include "runtime/launch/Hosts.h"

namespace merak::runtime {

// A device of a host that is left; the plan's number is its index.
struct Place {
  int number = 0; // in the order of all hosts
  int local = 0;  // among the devices of its host
  std::string host;
  int rank = -1; // of the plan that runs; -1: none
  bool operator==(const Place &) const = default;
};

std::vector<Place> placesLeft(const std::vector<Host> &hosts,
                              const std::set<std::string> &lost);
// Gives ranks to the devices that a plan names, which are all of its ranks'.
void placeRanks(std::vector<Place> &places, const std::vector<int> &devices);
// Hosts with ranks, each with as many as it has, in the order of ranks.
std::vector<Host> hostsOfRanks(const std::vector<Place> &places);

// What an agent tells its run of them (--places), "NUMBER:LOCAL:RANK@HOST,...",
// and what the run reads. Errors: not such a text.
std::string placesArgument(const std::vector<Place> &places);
Result<std::vector<Place>> parsePlaces(const std::string &text);
// The first of each host's ranks is that of its first process, and so on:
// launchers need not start hosts in the order in which they were named (Open
// MPI's begins with its own). That of the process of this host with this local
// rank; null: none is, or no host is this one.
const Place *placeHere(const std::vector<Place> &places, int localRank);
// By rank, of such places: which of its host's devices a process is.
std::vector<int> localDevices(const std::vector<Place> &places);

} // namespace merak::runtime
