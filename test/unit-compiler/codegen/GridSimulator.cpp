#include "test/unit-compiler/codegen/GridSimulator.h"

#include "codegen/Kernels/GridLowering.h"
#include "codegen/Kernels/GridSchedule.h"

#include <numeric>
#include <ucontext.h>
#include <vector>

namespace merak::codegen::test {

namespace {

constexpr size_t kStack = 64 * 1024;

enum class Place { Running, Barrier, WarpBarrier, Shuffle, Done };

struct Thread {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(kStack);
  Place place = Place::Running;
  int32_t shown = 0; // of the shuffle under way
};

struct Simulation {
  Call kernel;
  void *const *operands;
  const int64_t *scalars;
  int32_t block = 0, current = 0;
  ucontext_t scheduler = {};
  std::vector<Thread> threads;

  void leave(Place place) {
    Thread &thread = threads[current];
    thread.place = place;
    swapcontext(&thread.context, &scheduler);
  }
};

Simulation *simulation = nullptr;

void threadMain() {
  simulation->kernel(simulation->operands, simulation->scalars, 0, 0);
  simulation->threads[simulation->current].place = Place::Done;
}

int32_t threadNumber() { return simulation->current; }
int32_t blockNumber() { return simulation->block; }
void barrier() { simulation->leave(Place::Barrier); }
void warpBarrier() { simulation->leave(Place::WarpBarrier); }
int32_t shuffle(int32_t value, int32_t mask) {
  int32_t me = simulation->current;
  simulation->threads[me].shown = value;
  simulation->leave(Place::Shuffle); // all show theirs before one looks
  int32_t other = simulation->threads[me ^ mask].shown;
  simulation->leave(Place::Shuffle);
  return other;
}

uint64_t next(uint64_t &state) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return state >> 33;
}

template <typename T> void shuffleOrder(std::vector<T> &order, uint64_t &seed) {
  for (size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[next(seed) % i]);
}

void begin(Thread &thread, ucontext_t &after) {
  getcontext(&thread.context);
  thread.context.uc_stack.ss_sp = thread.stack.data();
  thread.context.uc_stack.ss_size = kStack;
  thread.context.uc_link = &after;
  makecontext(&thread.context, threadMain, 0);
}

// Runs the threads of a warp, in any order, until all are at the next place.
// Not null: they came to different ones.
const char *advance(Simulation &state, int32_t warp, uint64_t &seed) {
  std::vector<int32_t> threads(kWarp);
  std::iota(threads.begin(), threads.end(), warp * kWarp);
  shuffleOrder(threads, seed);
  for (int32_t thread : threads) {
    state.current = thread;
    state.threads[thread].place = Place::Running;
    swapcontext(&state.scheduler, &state.threads[thread].context);
  }
  for (int32_t thread : threads)
    if (state.threads[thread].place != state.threads[threads[0]].place)
      return "the threads of a warp come to different places\n";
  return nullptr;
}

// Warps go on by themselves, one or another of them, from barrier to barrier.
const char *runBlock(Simulation &state, uint64_t &seed) {
  std::vector<int32_t> going(state.threads.size() / kWarp);
  std::vector<int32_t> waiting, done;
  std::iota(going.begin(), going.end(), 0);
  while (true) {
    while (!going.empty()) {
      const size_t which = next(seed) % going.size();
      const int32_t warp = going[which];
      if (const char *error = advance(state, warp, seed))
        return error;
      const Place place = state.threads[warp * kWarp].place;
      if (place != Place::Barrier && place != Place::Done)
        continue;
      (place == Place::Barrier ? waiting : done).push_back(warp);
      going.erase(going.begin() + static_cast<std::ptrdiff_t>(which));
    }
    if (waiting.empty())
      return nullptr;
    if (!done.empty())
      return "the warps of a block come to different barriers\n";
    std::swap(going, waiting);
  }
}

} // namespace

void fillGridTable(void **table) {
  table[GridThread] = reinterpret_cast<void *>(&threadNumber);
  table[GridBlock] = reinterpret_cast<void *>(&blockNumber);
  table[GridBarrier] = reinterpret_cast<void *>(&barrier);
  table[GridWarpBarrier] = reinterpret_cast<void *>(&warpBarrier);
  table[GridShuffle] = reinterpret_cast<void *>(&shuffle);
}

std::string runGrid(Call kernel, void *const *operands, const int64_t *scalars,
                    int64_t blocks, int64_t threads, uint64_t seed) {
  Simulation state{kernel, operands, scalars};
  state.threads.resize(threads);
  simulation = &state;
  std::vector<int32_t> order(blocks);
  std::iota(order.begin(), order.end(), 0);
  shuffleOrder(order, seed);
  for (int32_t block : order) {
    state.block = block;
    for (Thread &thread : state.threads)
      begin(thread, state.scheduler);
    if (const char *error = runBlock(state, seed))
      return error;
  }
  return "";
}

} // namespace merak::codegen::test
