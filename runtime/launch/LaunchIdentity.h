// Which rank this process is, from the variables that launchers set:
//
//   torchrun   RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR
//              MASTER_PORT (anything that sets them counts)
//   mpirun     OMPI_COMM_WORLD_RANK _SIZE _LOCAL_RANK _LOCAL_SIZE (Open MPI),
//              PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS (MPICH)
//   Slurm      SLURM_PROCID SLURM_NTASKS SLURM_LOCALID SLURM_NODELIST ...
//
// A launcher may run inside another: of mpirun inside of a Slurm job the inner
// counts, and of torchrun inside of a Slurm job too.
#pragma once

#include "runtime/comm/rendezvous/Store.h"

#include <functional>
#include <memory>
#include <string>

namespace merak::runtime {

struct LaunchIdentity {
  enum Launcher { Torchrun, Mpirun, Slurm };
  Launcher launcher = Torchrun;
  int rank = 0, size = 1;
  int localRank = 0; // among the processes of this host
  int localSize = 1; // processes of this host
  // Which of this host's devices it has: that of its number, or as whoever
  // started it says (Places.h).
  int localDevice = 0;
  // Which rank whoever started it means it to be (Places.h); -1: nobody said.
  // Processes that meet through MPI take these if all of them have one.
  int plannedRank = -1;
  // Where rank 0 listens. With Mpirun empty and 0 unless the user set them:
  // MPI itself can tell.
  std::string masterAddress;
  int masterPort = 0;
  // Tells runs on one port apart; may be empty. No secret.
  std::string run;
  // The run's secret or the file that has it, from the user; both may be empty.
  std::string token, tokenFile;
  // Processes send each other host memory too, whatever their ranks compute on;
  // said by the run, not by the environment.
  bool hostMemory = false;
  double connectSeconds = 60; // MERAK_CONNECT_SECONDS: for all to come
  double silenceSeconds = 7;  // MERAK_SILENCE_SECONDS: then a rank is lost
};

// The value of an environment variable or null.
using EnvironmentReader = std::function<const char *(const char *)>;

// All that is missing, not a number, out of range or contradictory is reported
// at once.
Result<LaunchIdentity> launchIdentity(const EnvironmentReader &environment);

// The secret by which ranks know each other: MERAK_TOKEN, what the file
// MERAK_TOKEN_FILE holds, or else made of this user's key (UserKey.h), which
// processes of one host, and hosts of one home folder, have in common.
Result<std::string> runToken(const LaunchIdentity &identity);

// The store at `masterAddress`, for launchers that tell where rank 0 is.
Result<std::unique_ptr<Store>> openStore(const LaunchIdentity &identity);

// The first name of a Slurm node list: "n08" of "n[08-11,15],login".
std::string firstSlurmHost(const std::string &nodes);

} // namespace merak::runtime
