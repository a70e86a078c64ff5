// All hand-written device kernels: name, arguments, body. One list makes the
// entries of the device module (Kernels.cu) and the functions that tests run on
// the host (see Emulator.h).
#pragma once

#include "runtime/backends/cuda/kernels/Index.h"
#include "runtime/backends/cuda/kernels/Move.h"
#include "runtime/backends/cuda/kernels/Reduce.h"
#include "runtime/backends/cuda/kernels/Round.h"
#include "runtime/backends/cuda/kernels/Rows.h"
#include "runtime/backends/cuda/kernels/Update.h"
#include "runtime/backends/cuda/kernels/Window.h"

// X(Name, Args, body): the entry is called merak_<Name>.
#define MERAK_CUDA_MOVE_KERNELS(X)                                             \
  X(Copy, CopyArgs, copyBody)                                                  \
  X(Fill, FillArgs, fillBody)                                                  \
  X(FillDense, FillDenseArgs, fillDenseBody)                                   \
  X(Combine, CombineArgs, combineBody)                                         \
  X(Largest, LargestArgs, largestBody)                                         \
  X(Round, RoundArgs, roundBody)                                               \
  X(RoundTurned, RoundArgs, roundTurnedBody)                                   \
  X(Gather, GatherArgs, gatherBody)                                            \
  X(ScatterIds, GatherArgs, scatterIdsBody)                                    \
  X(ScatterLists, GatherArgs, scatterListsBody)                                \
  X(ScatterRows, GatherArgs, scatterRowsBody)                                  \
  X(ScatterPacks, GatherArgs, scatterPacksBody)                                \
  X(CoalesceRows, CoalesceArgs, coalesceRowsBody)                              \
  X(SplitIds, SplitIdsArgs, splitIdsBody)                                      \
  X(Pick, PickArgs, pickBody)                                                  \
  X(PickGrad, PickArgs, pickGradBody)                                          \
  X(TopK, TopKArgs, topKBody)                                                  \
  X(Rotary, RotaryArgs, rotaryBody)                                            \
  X(Dropout, DropoutArgs, dropoutBody)

#define MERAK_CUDA_ROW_KERNELS(X)                                              \
  X(Softmax, SoftmaxArgs, softmaxBody)                                         \
  X(SoftmaxGrad, SoftmaxArgs, softmaxGradBody)                                 \
  X(Norm, NormArgs, normBody)                                                  \
  X(NormGrad, NormArgs, normGradBody)                                          \
  X(CrossEntropy, CrossEntropyArgs, crossEntropyBody)                          \
  X(CrossEntropyGrad, CrossEntropyArgs, crossEntropyGradBody)                  \
  X(AttentionWeights, ScoreArgs, attentionWeightsBody)                         \
  X(AttentionGrad, ScoreArgs, attentionGradBody)                               \
  X(ParamGrad, ParamGradArgs, paramGradBody)                                   \
  X(ParamGradFinish, ParamGradArgs, paramGradFinishBody)

#define MERAK_CUDA_SUM_KERNELS(X)                                              \
  X(ReduceRowsF32, ReduceArgs, reduceRowsBody<float>)                          \
  X(ReduceRowsF64, ReduceArgs, reduceRowsBody<double>)                         \
  X(ReduceRowsI64, ReduceArgs, reduceRowsBody<int64_t>)                        \
  X(ReduceColumnsF32, ReduceArgs, reduceColumnsBody<float>)                    \
  X(ReduceColumnsF64, ReduceArgs, reduceColumnsBody<double>)                   \
  X(ReduceColumnsI64, ReduceArgs, reduceColumnsBody<int64_t>)                  \
  X(ReduceFinishF32, ReduceArgs, reduceFinishBody<float>)                      \
  X(ReduceFinishF64, ReduceArgs, reduceFinishBody<double>)                     \
  X(ReduceFinishI64, ReduceArgs, reduceFinishBody<int64_t>)                    \
  X(SquareSums, SquareSumsArgs, squareSumsBody)                                \
  X(SquareSumsFinish, SquareSumsArgs, squareSumsFinishBody)                    \
  X(ContractReal, ContractArgs, contractBody<double>)                          \
  X(ContractWhole, ContractArgs, contractBody<int64_t>)                        \
  X(FinishProduct, EpilogueArgs, finishProductBody)

// Of kPackThreads, Args::kBlocks of them on a processor at once, which limits
// registers.
#define MERAK_CUDA_PACK_KERNELS(X)                                             \
  X(SumPacksF32, ReduceArgs, sumPacksBody<AsF32>)                              \
  X(SumPacksBf16, ReduceArgs, sumPacksBody<AsBf16>)                            \
  X(SumPacksF16, ReduceArgs, sumPacksBody<AsF16>)                              \
  X(ParamGradPacksF32, ParamGradArgs, paramGradPacksBody<AsF32>)               \
  X(ParamGradPacksBf16, ParamGradArgs, paramGradPacksBody<AsBf16>)             \
  X(ParamGradPacksF16, ParamGradArgs, paramGradPacksBody<AsF16>)

#define MERAK_CUDA_OTHER_KERNELS(X)                                            \
  X(Conv, ConvArgs, convBody)                                                  \
  X(ConvGradInput, ConvArgs, convGradInputBody)                                \
  X(ConvGradWeight, ConvArgs, convGradWeightBody)                              \
  X(MaxPool, PoolArgs, maxPoolBody)                                            \
  X(MaxPoolGrad, PoolArgs, maxPoolGradBody)                                    \
  X(AveragePool, PoolArgs, averagePoolBody)                                    \
  X(AveragePoolGrad, PoolArgs, averagePoolGradBody)                            \
  X(AdamW, UpdateArgs, adamWBody)                                              \
  X(Adagrad, UpdateArgs, adagradBody)                                          \
  X(Sgd, UpdateArgs, sgdBody)                                                  \
  X(JoinedAdamW, JoinedUpdateArgs, joinedAdamWBody)                            \
  X(JoinedAdagrad, JoinedUpdateArgs, joinedAdagradBody)                        \
  X(JoinedSgd, JoinedUpdateArgs, joinedSgdBody)                                \
  X(Reach, ReachArgs, reachBody)                                               \
  X(ReplayMark, ReplayArgs, replayMarkBody)                                    \
  X(ReplayAdamW, ReplayArgs, replayAdamWBody)                                  \
  X(ReplaySgd, ReplayArgs, replaySgdBody)                                      \
  X(ReplayAdagrad, ReplayArgs, replayAdagradBody)                              \
  X(ClipFactor, ClipArgs, clipFactorBody)                                      \
  X(Scale, ScaleArgs, scaleBody)

#define MERAK_CUDA_KERNELS(X)                                                  \
  MERAK_CUDA_MOVE_KERNELS(X)                                                   \
  MERAK_CUDA_ROW_KERNELS(X)                                                    \
  MERAK_CUDA_SUM_KERNELS(X)                                                    \
  MERAK_CUDA_PACK_KERNELS(X)                                                   \
  MERAK_CUDA_OTHER_KERNELS(X)

namespace merak::cuda {

enum class KernelId : int {
#define MERAK_KERNEL_ID(name, args, body) name,
  MERAK_CUDA_KERNELS(MERAK_KERNEL_ID)
#undef MERAK_KERNEL_ID
      Count
};

// What a kernel's arguments are, for checks where it is launched.
template <KernelId id> struct KernelArgs;
#define MERAK_KERNEL_ARGS(name, args, body)                                    \
  template <> struct KernelArgs<KernelId::name> { using Type = args; };
MERAK_CUDA_KERNELS(MERAK_KERNEL_ARGS)
#undef MERAK_KERNEL_ARGS

} // namespace merak::cuda
