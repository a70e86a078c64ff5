// What a plan holds and sends, by purpose: bytes of parameters, gradients,
// optimizer state and copies that are gathered, each beside the number of the
// model's parameters; collectives of a step by action, kind and axes. Counted
// from the programs, without a machine: nothing here is a prediction.
#pragma once

#include "runtime/plan/Communication.h"

#include <map>
#include <string>
#include <vector>

namespace merak::report {

// Parameters that lie over the same axes.
struct StoredGroup {
  std::vector<std::string> axes; // none: whole on every rank
  int64_t tensors = 0;
  int64_t elements = 0; // of the whole tensors
  int64_t held = 0;     // of them, on this rank
  std::vector<std::string> names;
};

// Bytes of what a procedure holds while it runs.
struct TransientPeak {
  std::string action;   // of the procedure with the most, as "U"; empty: none
  double bytes = 0;     // of the values that live at its worst instruction
  double gathered = 0;  // of parameters gathered for a use
  double gradients = 0; // whole or in parts
  double others = 0;
};

// Collectives and transfers of a step on one rank.
struct Exchange {
  std::string action; // "B"
  std::string kind;   // "all_gather"
  std::string over;   // axes of the group, or where the peer is: "pp=1"
  int64_t count = 0;
  double message = 0; // bytes of the larger side, all together
  // Bytes that this rank sends at least: of n ranks (n - 1) / n of the message,
  // twice that for an all-reduce; a transfer's only where it is sent.
  double sent = 0;
};

// Of one rank of a class of ranks that behave alike.
struct Account {
  std::string label; // "stage 0, ranks 0-3"
  std::vector<StoredGroup> stored;
  int64_t parameters = 0; // elements of the whole tensors
  // Bytes for the whole step, with the gaps that alignment leaves. Final
  // gradients are those that one action makes and uses: what is left of a
  // gradient after a reduction that does not end where it began.
  double parameterBytes = 0, gatheredBytes = 0, gradientBytes = 0,
         finalGradientBytes = 0, optimizerBytes = 0, frozenBytes = 0,
         activationBytes = 0, communicationBytes = 0, otherBytes = 0;
  // What procedures share for their own values, and of it: the most that is
  // alive in one, and the most that is gathered parameters.
  double transientBytes = 0;
  TransientPeak peak;
  double gatheredForUse = 0;
  double arenaBytes = 0; // the sum of all these
  std::vector<Exchange> exchanges;
};

// By class of CommunicationMap. Requires verifyStructure to have passed.
std::vector<Account> accountsOf(const LoadedPlan &plan,
                                const CommunicationMap &map);

// A table for each class of ranks.
std::string describe(const std::vector<Account> &accounts);

} // namespace merak::report
