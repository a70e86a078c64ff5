#include "passes/Lowering/CopyProcedure.h"

#include "passes/Lowering/Touched.h"

using namespace mlir;

namespace merak::lowering {

namespace {

using plan::ViewAttr;
using Renamed = llvm::DenseMap<StringAttr, StringAttr>;

StringAttr freeName(plan::ProgramOp program, const Twine &wish) {
  std::string name = wish.str();
  for (int n = 2; program.lookupSymbol(name); ++n)
    name = (wish + "#" + Twine(n)).str();
  return StringAttr::get(program.getContext(), name);
}

ArrayAttr rename(ArrayAttr views, const Renamed &names) {
  SmallVector<Attribute> list;
  for (Attribute attr : views) {
    auto view = cast<ViewAttr>(attr);
    if (StringAttr name = names.lookup(view.getBuffer().getAttr()))
      view =
          ViewAttr::get(view.getContext(), FlatSymbolRefAttr::get(name),
                        view.getOffset(), view.getShape(), view.getStrides());
    list.push_back(view);
  }
  return ArrayAttr::get(views.getContext(), list);
}

plan::ProcedureOp copy(plan::ProgramOp program, plan::ProcedureOp procedure,
                       StringRef suffix) {
  OpBuilder builder(program.getContext());
  builder.setInsertionPointAfter(procedure);
  auto made = cast<plan::ProcedureOp>(builder.clone(*procedure));
  made.setSymNameAttr(freeName(program, procedure.getSymName() + suffix));
  Renamed renamed;
  for (plan::BufferOp buffer : transientsOf(program, procedure)) {
    builder.setInsertionPointAfter(buffer);
    auto own = cast<plan::BufferOp>(builder.clone(*buffer));
    own.setSymNameAttr(freeName(program, buffer.getSymName() + suffix));
    own.setProcedureAttr(FlatSymbolRefAttr::get(made.getSymNameAttr()));
    renamed[buffer.getSymNameAttr()] = own.getSymNameAttr();
  }
  for (auto op : made.getOps<plan::InstructionOpInterface>()) {
    op.setInputsAttr(rename(op.getInputs(), renamed));
    op.setOutputsAttr(rename(op.getOutputs(), renamed));
  }
  return made;
}

} // namespace

SmallVector<plan::BufferOp> transientsOf(plan::ProgramOp program,
                                         plan::ProcedureOp procedure) {
  SmallVector<plan::BufferOp> transients;
  for (auto buffer : program.getOps<plan::BufferOp>())
    if (auto of = buffer.getProcedureAttr();
        of && of.getAttr() == procedure.getSymNameAttr())
      transients.push_back(buffer);
  return transients;
}

plan::ProcedureOp ownProcedure(plan::ProgramOp program, plan::CallOp call,
                               StringRef suffix) {
  auto procedure = program.lookupSymbol<plan::ProcedureOp>(call.getProcedure());
  auto calls =
      llvm::count_if(program.getOps<plan::CallOp>(), [&](plan::CallOp other) {
        return other.getProcedureAttr() == call.getProcedureAttr();
      });
  if (calls < 2)
    return procedure;
  plan::ProcedureOp made = copy(program, procedure, suffix);
  call.setProcedure(made.getSymName());
  return made;
}

} // namespace merak::lowering
