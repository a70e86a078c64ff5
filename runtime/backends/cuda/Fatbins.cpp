// MERAK_CUDA_FATBINS: the folder with the output of nvcc.
#include "runtime/backends/cuda/Fatbins.h"

#define MERAK_EMBED(name)                                                      \
  asm(".pushsection .rodata\n.balign 16\n.global merakFatbin" #name            \
      "\n.hidden merakFatbin" #name "\nmerakFatbin" #name                      \
      ":\n.incbin \"" MERAK_CUDA_FATBINS "/" #name                             \
      "Kernels.fatbin\"\n.balign 16\n.popsection\n");                          \
  extern "C" const char merakFatbin##name[];

MERAK_EMBED(Move)
MERAK_EMBED(Row)
MERAK_EMBED(Sum)
MERAK_EMBED(Other)

namespace merak::cuda {

std::vector<Fatbin> fatbins() {
  return {{"MoveKernels", merakFatbinMove},
          {"RowKernels", merakFatbinRow},
          {"SumKernels", merakFatbinSum},
          {"OtherKernels", merakFatbinOther}};
}

} // namespace merak::cuda
