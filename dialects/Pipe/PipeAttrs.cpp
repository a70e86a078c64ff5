#include "dialects/Pipe/PipeDialect.h"

#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace merak;
using namespace merak::pipe;

namespace merak::pipe {

static FailureOr<Action> parseAction(AsmParser &parser) {
  SMLoc location = parser.getCurrentLocation();
  StringRef letter;
  if (parser.parseKeyword(&letter))
    return failure();
  if (std::optional<Action> action = merak::parseAction(letter))
    return *action;
  parser.emitError(location,
                   "expected an action P, F, R, B, W, S or U, found '")
      << letter << "'";
  return failure();
}

ParseResult parseActionLetter(OpAsmParser &parser, ActionAttr &action) {
  FailureOr<Action> parsed = parseAction(parser);
  if (failed(parsed))
    return failure();
  action = ActionAttr::get(parser.getContext(), *parsed);
  return success();
}

void printActionLetter(OpAsmPrinter &printer, Operation *, ActionAttr action) {
  printer << letter(action.getValue());
}

} // namespace merak::pipe

#define GET_ATTRDEF_CLASSES
#include "dialects/Pipe/PipeAttrs.cpp.inc"

void PipeDialect::registerAttributes() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "dialects/Pipe/PipeAttrs.cpp.inc"
      >();
}

LogicalResult DecisionAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                                   StringRef, ArrayAttr orders,
                                   int64_t microbatches,
                                   int64_t gradientBucket) {
  if (orders && !llvm::all_of(orders, llvm::IsaPred<ScheduleAttr>))
    return emitError() << "expected orders of #pipe.schedule, got " << orders;
  if (microbatches < 0)
    return emitError() << "expected microbatches of at least 0, got "
                       << microbatches;
  if (gradientBucket < 0)
    return emitError() << "expected gradient_bucket of at least 0, got "
                       << gradientBucket;
  return success();
}

Attribute ActionAttr::parse(AsmParser &parser, Type) {
  if (parser.parseLess())
    return {};
  FailureOr<Action> action = pipe::parseAction(parser);
  if (failed(action) || parser.parseGreater())
    return {};
  return get(parser.getContext(), *action);
}

void ActionAttr::print(AsmPrinter &printer) const {
  printer << "<" << letter(getValue()) << ">";
}

Attribute ScheduleAttr::parse(AsmParser &parser, Type) {
  std::vector<std::string> cells;
  SmallVector<SMLoc> locations;
  auto parseCell = [&]() -> ParseResult {
    locations.push_back(parser.getCurrentLocation());
    StringRef cell;
    if (parser.parseKeyword(&cell))
      return failure();
    cells.push_back(cell.str());
    return success();
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::LessGreater,
                                     parseCell))
    return {};
  std::vector<CellProblem> problems;
  std::vector<Step> steps = parseCells(cells, problems);
  for (const CellProblem &problem : problems)
    parser.emitError(locations[problem.position], problem.text);
  if (!problems.empty())
    return {};
  return get(parser.getContext(), steps);
}

void ScheduleAttr::print(AsmPrinter &printer) const {
  printer << "<";
  llvm::interleaveComma(cellsOf(getSteps()), printer);
  printer << ">";
}
