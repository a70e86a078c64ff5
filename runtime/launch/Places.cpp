#include "runtime/launch/Places.h"

#include "runtime/comm/rendezvous/TcpStore.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

namespace merak::runtime {

std::vector<Place> placesLeft(const std::vector<Host> &hosts,
                              const std::set<std::string> &lost) {
  std::vector<Place> places;
  int number = 0;
  for (const Host &host : hosts)
    for (int local = 0; local < int(host.slots); ++local, ++number)
      if (!lost.count(host.name))
        places.push_back({number, local, host.name, -1});
  return places;
}

void placeRanks(std::vector<Place> &places, const std::vector<int> &devices) {
  for (Place &place : places)
    place.rank = -1;
  for (size_t rank = 0; rank < devices.size(); ++rank)
    if (size_t(devices[rank]) < places.size())
      places[size_t(devices[rank])].rank = int(rank);
}

std::vector<Host> hostsOfRanks(const std::vector<Place> &places) {
  std::vector<Host> hosts;
  for (const Place &place : places) {
    if (place.rank < 0)
      continue;
    if (hosts.empty() || hosts.back().name != place.host)
      hosts.push_back({place.host, 0});
    ++hosts.back().slots;
  }
  return hosts;
}

std::string placesArgument(const std::vector<Place> &places) {
  std::string text = "--places=";
  for (const Place &place : places)
    text += fmt::format("{}{}:{}:{}@{}", &place == &places.front() ? "" : ",",
                        place.number, place.local, place.rank, place.host);
  return text;
}

Result<std::vector<Place>> parsePlaces(const std::string &text) {
  std::vector<Place> places;
  std::stringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    Place place;
    int length = 0;
    if (std::sscanf(part.c_str(), "%d:%d:%d@%n", &place.number, &place.local,
                    &place.rank, &length) != 3 ||
        length == 0 || size_t(length) == part.size() || place.number < 0 ||
        place.local < 0 || place.rank < -1)
      return Status::error(fmt::format(
          "--places: expected NUMBER:LOCAL:RANK@HOST, found \"{}\"", part));
    place.host = part.substr(size_t(length));
    places.push_back(std::move(place));
  }
  return places;
}

const Place *placeHere(const std::vector<Place> &places, int localRank) {
  std::vector<std::string> hosts;
  for (const Place &place : places)
    if (hosts.empty() || hosts.back() != place.host)
      hosts.push_back(place.host);
  const int here = thisHostAmong(hosts);
  if (here < 0)
    return nullptr;
  std::vector<const Place *> ranks;
  for (const Place &place : places)
    if (place.rank >= 0 && place.host == hosts[size_t(here)])
      ranks.push_back(&place);
  std::sort(ranks.begin(), ranks.end(),
            [](const Place *a, const Place *b) { return a->rank < b->rank; });
  return size_t(localRank) < ranks.size() ? ranks[size_t(localRank)] : nullptr;
}

std::vector<int> localDevices(const std::vector<Place> &places) {
  std::vector<int> locals;
  for (const Place &place : places)
    if (place.rank >= 0) {
      locals.resize(std::max(locals.size(), size_t(place.rank) + 1));
      locals[size_t(place.rank)] = place.local;
    }
  return locals;
}

} // namespace merak::runtime
