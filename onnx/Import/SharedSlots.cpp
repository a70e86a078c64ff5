#include "onnx/Import/SharedSlots.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"

using namespace merak;
using llvm::StringRef;

int merak::slotKind(const onnx::NodeProto &node, int slot) {
  StringRef type = node.op_type();
  if (type == "LayerNormalization" || type == "InstanceNormalization" ||
      type == "GroupNormalization" || type == "BatchNormalization" ||
      type == "RMSNormalization")
    return slot == 1 || slot == 2 ? slot : 0;
  if ((type == "Gemm" || type == "Conv" || type == "ConvTranspose") &&
      slot == 2)
    return 2;
  return 0;
}

std::string merak::parameterOfSlot(const onnx::NodeProto &node, int slot,
                                   const std::vector<std::string> &names) {
  if (names.size() == 1)
    return names[0];
  StringRef type = node.op_type();
  const int kind = slotKind(node, slot);
  StringRef word = kind == 2 || type == "Add"                ? "bias"
                   : kind == 1 || type == "Mul" || slot == 1 ? "weight"
                                                             : "";
  if (word.empty())
    return "";
  // "h.0.weight", else the only "h.0.in_proj_weight".
  std::string only;
  for (const std::string &name : names) {
    StringRef leaf = StringRef(name).rsplit('.').second;
    if (leaf == word || name == word)
      return name;
    if (StringRef(name).ends_with(word)) {
      if (!only.empty() && only != name)
        return "";
      only = name;
    }
  }
  return only;
}
