#include "passes/Sharding/CarriedValues.h"

using namespace mlir;
using namespace merak::pipe;

namespace merak {

ActionOp CarriedValues::gatherAction() {
  for (auto other : stage.getOps<ActionOp>())
    if (other.getKind() == pipe::Action::G)
      return other;
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPoint(action);
  auto made = ActionOp::create(builder, action.getLoc(),
                               builder.getStringAttr(freeName("gather")),
                               pipe::Action::G, uint64_t{0});
  made.getBody().emplaceBlock();
  return made;
}

ValueOp CarriedValues::declare(Location loc, const std::string &name, Type type,
                               ValueKind kind) {
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPointToStart(&stage.getBody().front());
  return ValueOp::create(builder, loc, builder.getStringAttr(freeName(name)),
                         TypeAttr::get(type),
                         ValueKindAttr::get(builder.getContext(), kind),
                         dist::LayoutAttr(), StringAttr());
}

ValueOp CarriedValues::declareCarried(Location loc, const std::string &name,
                                      Type type, TypedAttr initial) {
  ValueOp value = declare(loc, name, type, ValueKind::carried);
  value->setAttr(kInitialAttr, initial);
  return value;
}

Value CarriedValues::load(Location loc, ValueOp value) {
  return LoadOp::create(builder, loc, value.getType(),
                        FlatSymbolRefAttr::get(value.getSymNameAttr()));
}

void CarriedValues::save(Location loc, Value operand, ValueOp value,
                         UnitAttr accumulate) {
  StoreOp::create(builder, loc, operand,
                  FlatSymbolRefAttr::get(value.getSymNameAttr()), accumulate);
}

std::string CarriedValues::freeName(std::string name) {
  while (stage.lookupSymbol(name))
    name += "_";
  return name;
}

} // namespace merak
