#include "dialects/Dist/DistDialect.h"

#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace merak;
using namespace merak::dist;

#include "dialects/Dist/DistDialect.cpp.inc"
#include "dialects/Dist/DistEnums.cpp.inc"
#define GET_ATTRDEF_CLASSES
#include "dialects/Dist/DistAttrs.cpp.inc"
#define GET_OP_CLASSES
#include "dialects/Dist/DistOps.cpp.inc"

void DistDialect::initialize() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "dialects/Dist/DistAttrs.cpp.inc"
      >();
  addOperations<
#define GET_OP_LIST
#include "dialects/Dist/DistOps.cpp.inc"
      >();
}

bool merak::dist::isOverSubmicrobatches(Operation *conversion) {
  auto axes = conversion->getAttrOfType<ArrayAttr>("axes");
  return axes && axes.size() == 1 &&
         cast<StringAttr>(axes[0]).getValue() == kSubmicrobatchAxis;
}

//===----------------------------------------------------------------------===//
// #dist.mesh
//===----------------------------------------------------------------------===//

int64_t MeshAttr::getSize(StringRef axis) const {
  int64_t all = 1;
  for (auto [name, size] : llvm::zip(getAxes(), getSizes()))
    if (isOn(name.getValue(), axis))
      all *= size;
  return all;
}

SmallVector<StringRef> MeshAttr::getAxesOn(StringRef axis) const {
  SmallVector<StringRef> all;
  for (auto [name, size] : llvm::zip(getAxes(), getSizes()))
    if (size > 1 && isOn(name.getValue(), axis))
      all.push_back(name.getValue());
  return all;
}

Attribute MeshAttr::parse(AsmParser &parser, Type) {
  SMLoc loc = parser.getCurrentLocation();
  SmallVector<StringAttr> axes;
  SmallVector<int64_t> sizes;
  auto parseAxis = [&]() -> ParseResult {
    std::string name;
    int64_t size = 0;
    if (parser.parseKeywordOrString(&name) || parser.parseEqual() ||
        parser.parseInteger(size))
      return failure();
    axes.push_back(StringAttr::get(parser.getContext(), name));
    sizes.push_back(size);
    return success();
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::LessGreater,
                                     parseAxis))
    return {};
  return parser.getChecked<MeshAttr>(loc, parser.getContext(), axes, sizes);
}

void MeshAttr::print(AsmPrinter &printer) const {
  printer << "<";
  llvm::interleaveComma(
      llvm::zip(getAxes(), getSizes()), printer, [&](auto axis) {
        printer.printKeywordOrString(std::get<0>(axis).getValue());
        printer << " = " << std::get<1>(axis);
      });
  printer << ">";
}

//===----------------------------------------------------------------------===//
// #dist.cluster
//===----------------------------------------------------------------------===//

LogicalResult ClusterAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                                  StringRef backend, int64_t memoryBytes,
                                  StringRef) {
  if (backend != "cpu" && backend != "cuda")
    return emitError() << "expected the backend cpu or cuda, got '" << backend
                       << "'";
  if (memoryBytes < 0)
    return emitError() << "expected memory_bytes of at least 0, got "
                       << memoryBytes;
  return success();
}

ClusterAttr ClusterAttr::of(Operation *module) {
  if (auto cluster = module->getAttrOfType<ClusterAttr>(kClusterAttr))
    return cluster;
  return get(module->getContext(), "cpu", 0, "");
}

//===----------------------------------------------------------------------===//
// #dist.layout
//===----------------------------------------------------------------------===//

LayoutAttr LayoutAttr::get(MLIRContext *context, const layout::Layout &layout) {
  Builder builder(context);
  SmallVector<Attribute> dims;
  for (const layout::DimLayout &dim : layout.dims) {
    SmallVector<Attribute> factors;
    for (const layout::Factor &factor : dim.factors) {
      SmallVector<Attribute> parts{builder.getI64IntegerAttr(factor.size)};
      for (const std::string &axis : factor.axes)
        parts.push_back(builder.getStringAttr(axis));
      factors.push_back(builder.getArrayAttr(parts));
    }
    dims.push_back(builder.getArrayAttr(factors));
  }
  SmallVector<Attribute> partial;
  for (const std::string &axis : layout.partial)
    partial.push_back(builder.getStringAttr(axis));
  return get(context, builder.getArrayAttr(dims),
             builder.getArrayAttr(partial));
}

layout::Layout LayoutAttr::getLayout() const {
  layout::Layout layout;
  for (Attribute dim : getDims()) {
    layout::DimLayout dimLayout;
    for (Attribute factor : cast<ArrayAttr>(dim)) {
      auto parts = cast<ArrayAttr>(factor).getValue();
      layout::Factor f{cast<IntegerAttr>(parts[0]).getInt(), {}};
      for (Attribute axis : parts.drop_front())
        f.axes.push_back(cast<StringAttr>(axis).str());
      dimLayout.factors.push_back(std::move(f));
    }
    layout.dims.push_back(std::move(dimLayout));
  }
  for (Attribute axis : getPartial())
    layout.partial.push_back(cast<StringAttr>(axis).str());
  return layout;
}

SmallVector<int64_t> LayoutAttr::getLocalShape(MeshAttr mesh) const {
  SmallVector<int64_t> shape;
  for (Attribute dim : getDims()) {
    int64_t size = 1;
    for (Attribute factor : cast<ArrayAttr>(dim)) {
      auto parts = cast<ArrayAttr>(factor).getValue();
      int64_t local = cast<IntegerAttr>(parts[0]).getInt();
      for (Attribute axis : parts.drop_front())
        local /= mesh.getSize(cast<StringAttr>(axis).getValue());
      size *= local;
    }
    shape.push_back(size);
  }
  return shape;
}

Attribute LayoutAttr::parse(AsmParser &parser, Type) {
  SMLoc loc = parser.getCurrentLocation();
  Builder builder(parser.getContext());
  SmallVector<Attribute> dims, partial;
  auto parseAxes = [&](SmallVectorImpl<Attribute> &axes) {
    return parser.parseCommaSeparatedList(
        AsmParser::Delimiter::Paren, [&]() -> ParseResult {
          std::string axis;
          if (parser.parseKeywordOrString(&axis))
            return failure();
          axes.push_back(builder.getStringAttr(axis));
          return success();
        });
  };
  // dim ::= factor (`x` factor)*, factor ::= integer (`@` `(` axes `)`)?
  auto parseDim = [&]() -> ParseResult {
    SmallVector<Attribute> factors;
    do {
      int64_t size = 0;
      if (parser.parseInteger(size))
        return failure();
      SmallVector<Attribute> parts{builder.getI64IntegerAttr(size)};
      if (succeeded(parser.parseOptionalKeyword("over")) && parseAxes(parts))
        return failure();
      factors.push_back(builder.getArrayAttr(parts));
    } while (succeeded(parser.parseOptionalStar()));
    dims.push_back(builder.getArrayAttr(factors));
    return success();
  };
  if (parser.parseLess() ||
      parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, parseDim))
    return {};
  if (succeeded(parser.parseOptionalKeyword("partial")) && parseAxes(partial))
    return {};
  if (parser.parseGreater())
    return {};
  return parser.getChecked<LayoutAttr>(loc, parser.getContext(),
                                       builder.getArrayAttr(dims),
                                       builder.getArrayAttr(partial));
}

void LayoutAttr::print(AsmPrinter &printer) const {
  auto printAxes = [&](ArrayRef<Attribute> axes) {
    printer << "(";
    llvm::interleaveComma(axes, printer, [&](Attribute axis) {
      printer.printKeywordOrString(cast<StringAttr>(axis).getValue());
    });
    printer << ")";
  };
  printer << "<[";
  llvm::interleaveComma(getDims(), printer, [&](Attribute dim) {
    auto factors = cast<ArrayAttr>(dim);
    if (factors.empty())
      printer << 1;
    llvm::interleave(
        factors, printer,
        [&](Attribute factor) {
          auto parts = cast<ArrayAttr>(factor).getValue();
          printer << cast<IntegerAttr>(parts[0]).getInt();
          if (parts.size() > 1) {
            printer << " over ";
            printAxes(parts.drop_front());
          }
        },
        " * ");
  });
  printer << "]";
  if (!getPartial().empty()) {
    printer << " partial";
    printAxes(getPartial().getValue());
  }
  printer << ">";
}
