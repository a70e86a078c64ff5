#include "passes/Planning/TransferPlaces.h"

#include <algorithm>

namespace merak::planning {

namespace {

// What an action takes: halves of it are whole numbers.
constexpr int kUnit = 2;

// Of each stage: forwards before the first backward, and actions of one
// microbatch.
struct Flight {
  int forwards = 0, actions = 0;
};

std::vector<Flight> flightsOf(const Schedule &schedule) {
  std::vector<Flight> flights(schedule.stages);
  for (int stage = 0; stage < schedule.stages; ++stage) {
    Flight &flight = flights[stage];
    bool turned = false;
    int first = -1; // microbatch
    for (const Step &step : schedule.order[stage]) {
      if (step.action != Action::F && step.action != Action::R &&
          step.action != Action::B && step.action != Action::W)
        continue;
      turned |= step.action == Action::B;
      flight.forwards += step.action == Action::F && !turned;
      if (first < 0)
        first = step.microbatch;
      flight.actions += step.microbatch == first;
    }
    if (!turned)
      flight.forwards = 0;
  }
  return flights;
}

// Units by boundary of the stages [begin, end) of a pipeline, each way. By the
// law of docs/Resharding.md, "Hiding what is left", the transfers there and
// back between any two stages are hidden if they take no more microbatches than
// the first one has forwards before its first backward beyond 1F1B's, as
// against the second one.
void hideBetween(const std::vector<Flight> &flights, int begin, int end,
                 std::vector<int> &hidden) {
  std::vector<int> beyond(flights.size());
  for (int s = begin; s < end; ++s)
    beyond[s] = flights[s].forwards + s;
  std::vector<int> most = beyond; // of all stages from here on
  for (int s = end - 2; s > begin; --s)
    most[s] = std::max(beyond[s], most[s + 1]);
  int least = beyond[begin]; // of all stages up to here
  for (int s = begin; s + 1 < end; ++s) {
    least = std::min(least, beyond[s]);
    // No more than what a microbatch takes, else a link takes more.
    hidden[s] =
        std::clamp(least - most[s + 1], 0, 2) * flights[s].actions * kUnit / 2;
  }
}

// By boundary; empty: none hides anything. Pipelines stand one behind the
// other, and nothing goes from the last stage of one to the first of the next.
std::vector<int> hiddenBy(const Schedule &schedule,
                          const std::vector<Transfer> &transfers) {
  const int p = schedule.stages;
  if (schedule.chunks > 1)
    return {};
  std::vector<char> linked(p, false); // to the stage behind
  for (const Transfer &transfer : transfers)
    if (transfer.toStage == transfer.fromStage + 1)
      linked[transfer.fromStage] = true;
  const std::vector<Flight> flights = flightsOf(schedule);
  std::vector<int> hidden(p, 0);
  for (int begin = 0, end; begin < p; begin = end) {
    for (end = begin + 1; linked[end - 1];)
      ++end;
    hideBetween(flights, begin, end, hidden);
  }
  const bool some = std::any_of(hidden.begin(), hidden.end(),
                                [](int units) { return units > 0; });
  return some ? hidden : std::vector<int>();
}

// What stages wait for of their neighbours, once however many values go there:
// what else they receive is there before.
std::vector<Transfer> chainOf(const Schedule &schedule,
                              const std::vector<Transfer> &transfers) {
  std::vector<Transfer> chain = chainTransfers(schedule);
  auto isAmong = [&](const Transfer &link) {
    return std::find(transfers.begin(), transfers.end(), link) !=
           transfers.end();
  };
  std::erase_if(chain, [&](const Transfer &link) { return !isAmong(link); });
  return chain;
}

} // namespace

TransferPlaces::TransferPlaces(const Schedule &schedule,
                               std::vector<Transfer> transfers)
    : stages(schedule.stages), microbatches(schedule.microbatches),
      runs(size_t(schedule.virtualStages()) * kActions) {
  if (transfers.empty())
    transfers = chainTransfers(schedule);
  hidden = hiddenBy(schedule, transfers);
  for (int stage = 0; stage < stages; ++stage)
    for (size_t at = 0; at < schedule.order[stage].size(); ++at) {
      const Step &step = schedule.order[stage][at];
      Runs &of = runs[(size_t(step.chunk) * stages + stage) * kActions +
                      size_t(step.action)];
      if (of.places.empty()) {
        of.places.reserve(size_t(microbatches));
        of.microbatches.reserve(size_t(microbatches));
      }
      of.places.push_back(int(at));
      of.microbatches.push_back(step.microbatch);
    }
  const StepOrder order(schedule, transfers);
  atZero = runWith(order, schedule, {});
  if (hidden.empty())
    return;
  std::vector<BoundaryCost> boundaries;
  for (int units : hidden)
    boundaries.push_back({double(units), double(units)});
  const std::vector<Transfer> chain = chainOf(schedule, transfers);
  hiding = runWith(chain == transfers ? order : StepOrder(schedule, chain),
                   schedule, boundaries);
}

TransferPlaces::Run
TransferPlaces::runWith(const StepOrder &order, const Schedule &schedule,
                        const std::vector<BoundaryCost> &boundaries) const {
  SimulateOptions unit;
  unit.times = {{kUnit, kUnit, kUnit, kUnit, kUnit, kUnit}};
  unit.boundaries = boundaries;
  Run run{order.finished(), std::vector<std::vector<int>>(stages)};
  for (int stage = 0; stage < stages; ++stage)
    run.ends[stage].reserve(schedule.order[stage].size());
  order.run(order.costsOf(unit), std::vector<double>(stages, 0),
            [&](const StepOrder::Ran &step, double, double end) {
              run.ends[order.workOf(step).stage].push_back(int(end));
            });
  for (int stage = 0; stage < stages; ++stage)
    run.ends[stage].resize(schedule.order[stage].size());
  return run;
}

int TransferPlaces::unitsOf(int virtualStage, Action action) const {
  const int boundary = action == Action::F ? virtualStage : virtualStage - 1;
  return boundary >= 0 && boundary < int(hidden.size())
             ? hidden[size_t(boundary)]
             : 0;
}

std::vector<int> TransferPlaces::arrivals(const Transfer &transfer,
                                          bool atOnce) const {
  const std::vector<int> &sender = atZero.ends[transfer.fromStage];
  std::vector<int> of(size_t(microbatches),
                      int(atZero.ends[transfer.toStage].size()));
  if (!atZero.finished)
    return of;
  const int from = transfer.fromChunk * stages + transfer.fromStage;
  const auto &[places, numbers] = runsOf(from, transfer.fromAction);
  // Times at which the value of each run wants room ascend.
  auto lower = [&](const Run &run, auto wantedOf) {
    const std::vector<int> &receiver = run.ends[transfer.toStage];
    size_t ended = 0;
    for (size_t i = 0; i < places.size(); ++i) {
      const int wanted = wantedOf(i);
      if (wanted < 0)
        break;
      while (ended < receiver.size() && receiver[ended] <= wanted)
        ++ended;
      of[numbers[i]] = std::min(of[numbers[i]], int(ended));
    }
  };
  lower(atZero, [&](size_t i) {
    if (atOnce)
      return sender[places[i]];
    // The next run that is not the step right behind.
    size_t next = i + 1;
    if (next < places.size() && places[next] == places[i] + 1)
      ++next;
    return next < places.size() ? sender[places[next]] - kUnit : -1;
  });
  if (unitsOf(from, transfer.fromAction) > 0 && hiding.finished)
    lower(hiding,
          [&](size_t i) { return hiding.ends[transfer.fromStage][places[i]]; });
  return of;
}

std::vector<int> TransferPlaces::departures(const Transfer &transfer) const {
  std::vector<int> of(size_t(microbatches), 0);
  const int from = transfer.fromChunk * stages + transfer.fromStage;
  const int units = unitsOf(from, transfer.fromAction);
  if (units == 0 || !hiding.finished)
    return of;
  const std::vector<int> &sender = hiding.ends[transfer.fromStage];
  const auto &[places, numbers] = runsOf(from, transfer.fromAction);
  int left = 0; // when the value before has
  size_t begun = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    left = std::max(left, sender[places[i]]) + units;
    while (begun < sender.size() && sender[begun] - kUnit < left)
      ++begun;
    of[numbers[i]] = int(begun);
  }
  return of;
}

std::vector<TransferRoom> roomsOf(const Schedule &schedule,
                                  const std::vector<Transfer> &transfers,
                                  bool atOnce) {
  std::vector<TransferRoom> rooms;
  if (transfers.empty())
    return rooms;
  const TransferPlaces places(schedule, transfers);
  for (const Transfer &transfer : transfers)
    rooms.push_back(
        {places.arrivals(transfer, atOnce), places.departures(transfer)});
  return rooms;
}

} // namespace merak::planning
