// merak-bench: measures the machine it stands on.
#include "tools/devices/Devices.h"
#include "tools/merak-bench/BenchTool.h"

int main(int argc, char **argv) {
  return merak::bench::benchToolMain(argc, argv, merak::deviceBackends(),
                                     merak::deviceWorlds());
}
