// Which hosts keep which part of a run's state in their memory, and who sends
// it there. Numbers alone: no plan, no files, no sockets. Every process of a
// run comes to the same answer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace merak::runtime {

// A box of the state: its bytes, and the ranks that hold it, ascending.
struct CopyItem {
  int64_t bytes = 0;
  std::vector<int> ranks;
};

struct CopyKeeper {
  int host = 0;
  int rank = 0; // of that host: its process writes the part
  int from = 0; // sends it; `rank` itself: it holds the part
  bool isSent() const { return from != rank; }
};

// Items that the same ranks hold and the same hosts keep: one file.
struct CopyPart {
  std::vector<int> items; // ascending
  int64_t bytes = 0;
  std::vector<CopyKeeper> keepers; // by host, ascending
};

// A part that is moved from one rank's host to another's.
struct CopyTransfer {
  int part = 0, from = 0, to = 0; // ranks
  bool operator==(const CopyTransfer &) const = default;
};

// Hosts are numbered from 0 without gaps. Each item is kept by `copies` hosts
// besides one, or by all: by those that hold it, as far as there are, which
// costs no link; what is missing is sent, the largest first, to hosts that keep
// least. A host that was sent something keeps at most that much more than any
// host that could have been sent it.
std::vector<CopyPart> planCopies(const std::vector<CopyItem> &items,
                                 const std::vector<int> &hostOfRank,
                                 int copies);

// In the order in which both ends must go through them.
std::vector<CopyTransfer> transfersOf(const std::vector<CopyPart> &parts);

// What a host must have of parts that lie on hosts already: each part goes once
// to each host that lacks it, from the host that sends least by then, between
// ranks of the two. wanted[rank]: parts; present[host]: parts, one or more
// hosts for each that is wanted.
std::vector<CopyTransfer>
planFetches(const std::vector<int64_t> &partBytes,
            const std::vector<std::vector<int>> &wanted,
            const std::vector<std::vector<int>> &present,
            const std::vector<int> &hostOfRank);

} // namespace merak::runtime
