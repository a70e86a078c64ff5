#include "codegen/Kernels/GridLowering.h"

#include "codegen/Kernels/GridEmitter.h"

#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/IntrinsicsNVPTX.h"
#include "llvm/IR/Module.h"

namespace merak::codegen {

static llvm::Value *onGpu(llvm::IRBuilder<> &builder, GridCall what,
                          llvm::CallInst *call) {
  switch (what) {
  case GridThread:
    return builder.CreateIntrinsic(llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x,
                                   {});
  case GridBlock:
    return builder.CreateIntrinsic(llvm::Intrinsic::nvvm_read_ptx_sreg_ctaid_x,
                                   {});
  case GridBarrier:
    return builder.CreateIntrinsic(
        llvm::Intrinsic::nvvm_barrier_cta_sync_aligned_all,
        {builder.getInt32(0)});
  case GridWarpBarrier:
    return builder.CreateIntrinsic(llvm::Intrinsic::nvvm_bar_warp_sync,
                                   {builder.getInt32(-1)});
  default: // all threads of a warp; 31: numbers are taken within 32
    return builder.CreateIntrinsic(
        llvm::Intrinsic::nvvm_shfl_sync_bfly_i32,
        {builder.getInt32(-1), call->getArgOperand(0), call->getArgOperand(1),
         builder.getInt32(31)});
  }
}

void lowerGridCalls(llvm::Module &module, bool isGpu) {
  llvm::IRBuilder<> builder(module.getContext());
  llvm::GlobalVariable *table = nullptr;
  llvm::ArrayType *tableType =
      llvm::ArrayType::get(builder.getPtrTy(), GridCalls);
  if (!isGpu)
    table = new llvm::GlobalVariable(
        module, tableType, /*isConstant=*/false,
        llvm::GlobalValue::ExternalLinkage,
        llvm::ConstantAggregateZero::get(tableType), kGridTable);
  const char *names[] = {kGridThread, kGridBlock, kGridBarrier,
                         kGridWarpBarrier, kGridShuffle};
  for (int what = 0; what < GridCalls; ++what) {
    llvm::Function *function = module.getFunction(names[what]);
    if (!function)
      continue;
    for (llvm::User *user : llvm::make_early_inc_range(function->users())) {
      auto *call = llvm::cast<llvm::CallInst>(user);
      builder.SetInsertPoint(call);
      llvm::Value *made = nullptr;
      if (isGpu) {
        made = onGpu(builder, static_cast<GridCall>(what), call);
      } else {
        llvm::Value *slot =
            builder.CreateConstInBoundsGEP2_32(tableType, table, 0, what);
        llvm::SmallVector<llvm::Value *> arguments(call->args());
        made = builder.CreateCall(function->getFunctionType(),
                                  builder.CreateLoad(builder.getPtrTy(), slot),
                                  arguments);
      }
      call->replaceAllUsesWith(made);
      call->eraseFromParent();
    }
    function->eraseFromParent();
  }
  if (!isGpu)
    return;
  for (llvm::Function &function : module) {
    if (function.isDeclaration())
      continue;
    function.setCallingConv(llvm::CallingConv::PTX_Kernel);
  }
}

} // namespace merak::codegen
