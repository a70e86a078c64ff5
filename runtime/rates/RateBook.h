// How many times longer than a normal device each device of a run takes (the
// straggling rate of Malleus, arXiv 2410.13333), step by step, and who is slow.
//
// A device's work is compared, class of kernel by class, with that of devices
// which run the same program, and with what the program took in the first
// steps: what the cost model is wrong about is the same for all of these. So
// one of two peers is seen to be slow, and both of them, and a device that has
// no peers. What was slow from the first step on, and has no peers, is seen by
// other programs, from the severe threshold on: below it, it may as well be
// the cost model. What slows down all devices is no straggler.
//
// A run that goes on under another plan knows its devices already, and not the
// new programs. A device is as fast after the switch as before it; so what a
// program takes at first, over the rate that its device had, is normal for it.
// Unless the device takes nearly twice as long, or half as long, as at that
// rate kernels of these classes took under the plan before: then it became
// another one in these steps.
//
// Steps that are shorter than what an operating system may take a processor
// away for are looked at several at a time. A rate is the median of the last
// five looks, and a pace changes if four of these say so: what disturbs one,
// two or three of them does not count, and a device that is slow from one look
// on is known at the fourth.
#pragma once

#include "runtime/rates/Work.h"

#include <deque>

namespace merak::rates {

// Looks that a rate is the median of, and of which all but one must say that a
// device is slow, or that it is not.
constexpr size_t kWindow = 5;

// Rates from which on a device is slow, and below which it is no longer: apart,
// so that one that hovers at a threshold changes its pace once.
struct Thresholds {
  double mild = 1.2, notMild = 1.1;
  double severe = 2.0, notSevere = 1.7;
  // Of steps that are looked at together, what some device computes at least.
  double leastSeconds = 0.02;
};

enum class Pace { Normal, Mild, Severe };
const char *nameOf(Pace pace); // "normal"

struct DeviceRate {
  double rate = 1;
  Pace pace = Pace::Normal;
  int64_t since = 0; // the step, from 1, of the last change; 0: none
};

// One that is known to take so many times as long.
DeviceRate deviceOf(double rate);

// One device is slow from now on, or no longer.
struct PaceChange {
  int device = 0;
  Pace from = Pace::Normal, to = Pace::Normal;
  double rate = 1;
};
// "rank 2 takes 3.1 times as long as it should: severe"
std::string describe(const PaceChange &change, const char *what = "rank");

// What a book knows of its devices and, of each class of kernels, how many
// times as long as expected these take a normal one; 0: not known.
struct Known {
  std::vector<DeviceRate> devices;
  Seconds normal{};
};

class RateBook {
public:
  // `programs`: of each device, the number of its program.
  // `before`: of the same devices, under another plan.
  explicit RateBook(std::vector<int> programs, Thresholds thresholds = {},
                    const Known &before = {});

  // What the devices computed in a step (numbered from 1); the first one warms
  // up and does not count.
  std::vector<PaceChange> add(int64_t step, const std::vector<Work> &devices);

  const std::vector<DeviceRate> &devices() const { return devices_; }
  Known known() const;

private:
  struct Of {                  // a program and a class
    std::vector<double> begun; // ratios of the first steps
    double normal = 0;         // of these; 0: not known
  };
  std::vector<double> ratesNow(const std::vector<Work> &works);
  void learn(const std::vector<Work> &works);
  std::vector<Seconds> ratios(const std::vector<Work> &works,
                              const std::vector<double> &rates) const;
  double usual(size_t c, const std::vector<Work> &works) const;
  std::vector<double> ratesBefore(const std::vector<Work> &works) const;
  Pace paceOf(size_t device, const std::vector<double> &sorted) const;
  bool gather(const std::vector<Work> &devices);

  std::vector<int> programs_;
  int count_ = 0; // of programs
  Thresholds thresholds_;
  Known before_;
  int64_t seen_ = 0;
  std::vector<Work> looked_;                         // of the steps of one look
  std::vector<std::array<Of, kRateClasses>> normal_; // by program
  std::vector<DeviceRate> devices_;
  std::vector<std::deque<double>> last_; // by device
};

} // namespace merak::rates
