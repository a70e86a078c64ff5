#include "onnx/Import/ImportReport.h"

using namespace merak;

static void printList(llvm::raw_ostream &out, const char *title,
                      const std::vector<std::string> &lines) {
  for (const std::string &line : lines)
    out << title << line << "\n";
}

void ImportReport::print(llvm::raw_ostream &out) const {
  out << "import: opset " << opset << ", " << nodes << " nodes, " << folded
      << " folded, " << unreached << " not reached, " << trained.size()
      << " parameters trained, " << frozen.size() << " frozen\n";
  if (allTrained)
    out << "all " << trained.size()
        << " parameters are trained; --freeze or --trainable narrow it\n";
  if (strategy) {
    out << "device notes of the model:";
    for (const auto &[axis, degree] : strategy->mesh)
      out << " " << axis << "=" << degree;
    out << ", " << strategy->parameters.size() + strategy->classes.size()
        << " shardings\n";
  }
  if (training)
    out << "training algorithm of the model: loss '" << training->loss << "', "
        << training->optimizer << " on " << training->trained.size()
        << " initializers"
        << (training->rateProgram.empty() ? ""
                                          : ", its rate computed every step")
        << (training->states.empty() ? "" : ", from states of the model")
        << "\n";
  for (const Decision &decision : trained)
    if (!decision.reason.empty())
      out << "trained " << decision.name << " " << decision.type << ": "
          << decision.reason << "\n";
  for (const Decision &decision : frozen)
    out << "frozen " << decision.name << " " << decision.type << ": "
        << decision.reason << "\n";
  printList(out, "tied ", tied);
  printList(out, "un-merged ", unmerged);
  printList(out, "restored ", restored);
  printList(out, "unused output ", unusedOutputs);
  printList(out, "absent file ", absentFiles);
}
