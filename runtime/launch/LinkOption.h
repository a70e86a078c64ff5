// The option --links of merak-run: which links to emulate.
#pragma once

#include "runtime/core/Status.h"
#include "runtime/plan/Links.h"

#include <functional>

namespace merak::runtime {

// Takes the links from the text of a cluster file; `name` opens each message.
// Given by the tool, since the cluster file is the compiler's.
using ClusterLinks = std::function<Result<Links>(const std::string &json,
                                                 const std::string &name)>;

// "LATENCY/BANDWIDTH", for example "5us/200MB/s", between any two ranks. With
// "INTRA,INTER@RANKS" links differ inside and between nodes of RANKS ranks:
// "5us/2GB/s,50us/200MB/s@4". Units: ns, us, ms, s; B, kB, MB, GB a second.
Result<Links> parseLinks(const std::string &text);

// The value of --links: as above, "plan" for `planCluster`, or a cluster file.
Result<Links> linksOf(const std::string &option, const std::string &planCluster,
                      const ClusterLinks &clusterLinks);

} // namespace merak::runtime
