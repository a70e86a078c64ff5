#include "dialects/Plan/PlanDialect.h"

#include "dialects/Pipe/PipeDialect.h"

#include "mlir/IR/DialectImplementation.h"
#include "runtime/layout/Strides.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace merak;
using namespace merak::plan;

//===----------------------------------------------------------------------===//
// Views
//===----------------------------------------------------------------------===//

namespace {

template <typename Printer> void printList(Printer &p, ArrayRef<int64_t> list) {
  p << "[";
  llvm::interleaveComma(list, p);
  p << "]";
}

ParseResult parseList(AsmParser &parser, SmallVectorImpl<int64_t> &list) {
  return parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, [&]() {
    return parser.parseInteger(list.emplace_back());
  });
}

// @buffer[shape] (by [strides])? (at offset)?
void printView(AsmPrinter &p, ViewAttr view) {
  p.printSymbolName(view.getBuffer().getValue());
  printList(p, view.getShape());
  if (!llvm::equal(view.getStrides(), layout::denseStrides(view.getShape()))) {
    p << " by ";
    printList(p, view.getStrides());
  }
  if (view.getOffset())
    p << " at " << view.getOffset();
}

ParseResult parseView(AsmParser &parser, ViewAttr &view) {
  StringAttr name;
  SmallVector<int64_t> shape, strides;
  int64_t offset = 0;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseSymbolName(name) || parseList(parser, shape))
    return failure();
  if (succeeded(parser.parseOptionalKeyword("by"))) {
    if (parseList(parser, strides))
      return failure();
  } else {
    strides = llvm::to_vector(layout::denseStrides(shape));
  }
  if (succeeded(parser.parseOptionalKeyword("at")) &&
      parser.parseInteger(offset))
    return failure();
  view = parser.getChecked<ViewAttr>(loc, parser.getContext(),
                                     FlatSymbolRefAttr::get(name), offset,
                                     shape, strides);
  return success(view != nullptr);
}

void printViews(OpAsmPrinter &p, Operation *, ArrayAttr views) {
  p << "(";
  llvm::interleaveComma(views, p,
                        [&](Attribute v) { printView(p, cast<ViewAttr>(v)); });
  p << ")";
}

ParseResult parseViews(OpAsmParser &parser, ArrayAttr &views) {
  SmallVector<Attribute> list;
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Paren,
                                     [&]() -> ParseResult {
                                       ViewAttr view;
                                       if (parseView(parser, view))
                                         return failure();
                                       list.push_back(view);
                                       return success();
                                     }))
    return failure();
  views = ArrayAttr::get(parser.getContext(), list);
  return success();
}

} // namespace

#include "dialects/Plan/PlanDialect.cpp.inc"
#include "dialects/Plan/PlanEnums.cpp.inc"
#include "dialects/Plan/PlanInterfaces.cpp.inc"
#define GET_ATTRDEF_CLASSES
#include "dialects/Plan/PlanAttrs.cpp.inc"
#define GET_OP_CLASSES
#include "dialects/Plan/PlanOps.cpp.inc"

void PlanDialect::initialize() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "dialects/Plan/PlanAttrs.cpp.inc"
      >();
  addOperations<
#define GET_OP_LIST
#include "dialects/Plan/PlanOps.cpp.inc"
      >();
}

int64_t plan::elementBytes(Type type) {
  if (type.isIndex())
    return 8;
  return (type.getIntOrFloatBitWidth() + 7) / 8;
}

int64_t plan::tensorBytes(RankedTensorType type) {
  return type.getNumElements() * elementBytes(type.getElementType());
}

bool ViewAttr::isDense() const {
  return layout::isDense(getShape(), getStrides());
}

int64_t ViewAttr::getNumElements() const {
  int64_t count = 1;
  for (int64_t size : getShape())
    count *= size;
  return count;
}

Attribute ViewAttr::parse(AsmParser &parser, Type) {
  ViewAttr view;
  if (parser.parseLess() || parseView(parser, view) || parser.parseGreater())
    return {};
  return view;
}

void ViewAttr::print(AsmPrinter &printer) const {
  printer << "<";
  printView(printer, *this);
  printer << ">";
}

//===----------------------------------------------------------------------===//
// Scalars
//===----------------------------------------------------------------------===//

Attribute ScalarAttr::parse(AsmParser &parser, Type) {
  Attribute value;
  int64_t scale = 0;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseLess() || parser.parseAttribute(value))
    return {};
  if (succeeded(parser.parseOptionalStar()) && parser.parseInteger(scale))
    return {};
  if (parser.parseGreater())
    return {};
  return parser.getChecked<ScalarAttr>(loc, parser.getContext(), value, scale);
}

void ScalarAttr::print(AsmPrinter &printer) const {
  printer << "<" << getValue();
  if (getScale())
    printer << " * " << getScale();
  printer << ">";
}

//===----------------------------------------------------------------------===//
// Ops
//===----------------------------------------------------------------------===//

int64_t BufferOp::getBytes() {
  return tensorBytes(cast<RankedTensorType>(getType()));
}
