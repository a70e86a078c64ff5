#include "runtime/launch/AsRank.h"

#include "runtime/comm/rendezvous/ProcessWorld.h"
#include "runtime/core/Output.h"
#include "runtime/launch/AbortTimer.h"

#include <fmt/format.h>

#include <cstdlib>

namespace merak::runtime {
namespace {

// An aborted run: each process has so long to end by itself, and to hear that
// all others have told what they know. Together less than 10 seconds with the
// silence after which a rank is lost.
constexpr double kEndSeconds = 2, kFarewellSeconds = 1;

void takePlace(const std::vector<Place> &places, LaunchIdentity &identity) {
  if (const Place *mine = placeHere(places, identity.localRank)) {
    identity.plannedRank = mine->rank;
    identity.localDevice = mine->local;
    return;
  }
  const std::vector<int> devices = localDevices(places);
  if (size_t(identity.rank) < devices.size())
    identity.localDevice = devices[size_t(identity.rank)];
}

} // namespace

int exitCode(const std::string &tool, const Status &status) {
  for (const std::string &message : status.messages())
    if (!message.empty())
      complain(fmt::format("{}: error: {}", tool, message));
  return status.ok() ? 0 : 1;
}

int asRank(const std::string &tool, const std::string &backend,
           const WorldRegistry &worlds,
           const std::function<Status(World &, std::string &early)> &body,
           const int &failureCode, bool hostMemory,
           const std::vector<Place> &places) {
  auto identity =
      launchIdentity([](const char *name) { return std::getenv(name); });
  if (!identity)
    return exitCode(tool, identity.status());
  takePlace(places, *identity);
  identity->hostMemory = hostMemory;
  const auto make = worlds.find(backend);
  if (make == worlds.end())
    return exitCode(tool, Status::error(fmt::format(
                              "this build has no communication between "
                              "processes for the backend {}: use "
                              "--ranks=inproc",
                              backend)));
  auto world = make->second(*identity);
  if (!world)
    return exitCode(tool, world.status());
  Store &store = *(*world)->store();
  AbortTimer last(store, kEndSeconds);
  std::string early;
  Status status = body(**world, early);
  if (status.ok()) {
    store.leave(kPatienceSeconds);
    if (!store.aborted())
      return exitCode(
          tool, early.empty() ? Status()
                              : Status::error((*world)->leads() ? early : ""));
    status = store.abortReason();
  }
  if (!isAgreed(status))
    (*world)->abort(status);
  exitCode(tool, status);
  // All others tell what they know before the first one is gone, whose launcher
  // then ends them. Their libraries would wait for ranks that never come.
  std::fflush(nullptr);
  store.leave(kFarewellSeconds);
  std::_Exit(failureCode);
}

} // namespace merak::runtime
