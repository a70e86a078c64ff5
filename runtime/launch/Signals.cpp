#include "runtime/launch/Signals.h"

#include <csignal>
#include <initializer_list>

namespace merak::runtime {
namespace {

volatile std::sig_atomic_t stopSignal = 0, saveSignal = 0;

void onStop(int number) {
  stopSignal = number;
  std::signal(number, SIG_DFL);
}

void onSave(int) { saveSignal = 1; }

void listen(int number, void (*handler)(int)) {
  struct sigaction action = {};
  if (sigaction(number, nullptr, &action) == 0 &&
      action.sa_handler == SIG_IGN && number == SIGHUP)
    return;
  action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(number, &action, nullptr);
}

std::string nameOf(int number) {
  return number == SIGINT ? "SIGINT" : number == SIGTERM ? "SIGTERM" : "SIGHUP";
}

} // namespace

void Wish::merge(const Wish &other) {
  save |= other.save;
  if (stop.empty())
    stop = other.stop;
  if (look == 0)
    look = other.look;
}

void listenToSignals() {
  for (int number : {SIGINT, SIGTERM, SIGHUP})
    listen(number, onStop);
  listen(SIGUSR1, onSave);
}

Wish takeSignals() {
  Wish wish;
  if (saveSignal) {
    saveSignal = 0;
    wish.save = true;
  }
  if (const int number = stopSignal; number) {
    stopSignal = 0;
    wish.stop = nameOf(number);
  }
  return wish;
}

} // namespace merak::runtime
