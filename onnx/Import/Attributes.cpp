#include "onnx/Import/Attributes.h"

#include "llvm/ADT/bit.h"

#include <cstring>

using namespace mlir;
using namespace merak;
using onnx::AttributeProto;
using onnx::TensorProto;

Type merak::elementTypeOf(int onnxType, MLIRContext *context) {
  auto integer = [&](unsigned width, bool isUnsigned = false) -> Type {
    return IntegerType::get(context, width,
                            isUnsigned ? IntegerType::Unsigned
                                       : IntegerType::Signless);
  };
  switch (onnxType) {
  case TensorProto::FLOAT:
    return Float32Type::get(context);
  case TensorProto::DOUBLE:
    return Float64Type::get(context);
  case TensorProto::FLOAT16:
    return Float16Type::get(context);
  case TensorProto::BFLOAT16:
    return BFloat16Type::get(context);
  case TensorProto::BOOL:
    return integer(1);
  case TensorProto::INT8:
    return integer(8);
  case TensorProto::INT16:
    return integer(16);
  case TensorProto::INT32:
    return integer(32);
  case TensorProto::INT64:
    return integer(64);
  case TensorProto::UINT8:
    return integer(8, true);
  case TensorProto::UINT16:
    return integer(16, true);
  case TensorProto::UINT32:
    return integer(32, true);
  case TensorProto::UINT64:
    return integer(64, true);
  default:
    return {};
  }
}

DenseElementsAttr merak::attributeOf(const OnnxTensor &tensor,
                                     llvm::StringRef bytes,
                                     MLIRContext *context) {
  Type element = elementTypeOf(tensor.dataType, context);
  if (!element ||
      bytes.size() != tensor.elements() * onnxElementSize(tensor.dataType))
    return {};
  auto type = RankedTensorType::get(tensor.dims, element);
  if (tensor.elements() == 0)
    return DenseElementsAttr::get(type, ArrayRef<Attribute>());
  if (tensor.dataType == TensorProto::BOOL) {
    SmallVector<bool> values;
    for (char byte : bytes)
      values.push_back(byte != 0);
    return DenseElementsAttr::get(type, values);
  }
  return DenseElementsAttr::getFromRawBuffer(
      type, ArrayRef<char>(bytes.data(), bytes.size()));
}

template <typename Stored, typename Widen>
static std::vector<float> widened(llvm::StringRef bytes, const Widen &widen) {
  std::vector<float> values(bytes.size() / sizeof(Stored));
  for (size_t i = 0; i < values.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    values[i] = widen(stored);
  }
  return values;
}

std::vector<float> merak::floatsOf(int onnxType, llvm::StringRef bytes) {
  switch (onnxType) {
  case TensorProto::FLOAT:
    return widened<float>(bytes, [](float x) { return x; });
  case TensorProto::DOUBLE:
    return widened<double>(bytes,
                           [](double x) { return static_cast<float>(x); });
  case TensorProto::BFLOAT16:
    return widened<uint16_t>(bytes, [](uint16_t x) {
      return llvm::bit_cast<float>(uint32_t(x) << 16);
    });
  case TensorProto::FLOAT16:
    return widened<uint16_t>(bytes, [](uint16_t x) {
      APFloat half(APFloat::IEEEhalf(), APInt(16, x));
      bool loses;
      half.convert(APFloat::IEEEsingle(), APFloat::rmNearestTiesToEven, &loses);
      return half.convertToFloat();
    });
  default:
    return {};
  }
}

// Null: no MLIR form.
static Attribute valueOf(const AttributeProto &attr, Builder &b) {
  switch (attr.type()) {
  case AttributeProto::INT:
    return b.getI64IntegerAttr(attr.i());
  case AttributeProto::FLOAT:
    return b.getF32FloatAttr(attr.f());
  case AttributeProto::STRING:
    return b.getStringAttr(attr.s());
  case AttributeProto::INTS:
    return b.getDenseI64ArrayAttr(
        SmallVector<int64_t>(attr.ints().begin(), attr.ints().end()));
  case AttributeProto::FLOATS:
    return b.getDenseF32ArrayAttr(
        SmallVector<float>(attr.floats().begin(), attr.floats().end()));
  case AttributeProto::STRINGS: {
    SmallVector<Attribute> strings;
    for (const std::string &text : attr.strings())
      strings.push_back(b.getStringAttr(text));
    return b.getArrayAttr(strings);
  }
  case AttributeProto::TENSOR: {
    OnnxTensor tensor;
    std::string error;
    if (!decodeTensor(attr.t(), tensor, error))
      return {};
    return attributeOf(tensor, tensor.owned, b.getContext());
  }
  default:
    return {};
  }
}

const AttributeProto *merak::findAttribute(const onnx::NodeProto &node,
                                           llvm::StringRef name) {
  for (const AttributeProto &attribute : node.attribute())
    if (attribute.name() == name)
      return &attribute;
  return nullptr;
}

DictionaryAttr merak::attributesOf(const onnx::NodeProto &node,
                                   MLIRContext *context) {
  Builder b(context);
  NamedAttrList list;
  for (const AttributeProto &attr : node.attribute()) {
    // Repeated or nameless attributes have no meaning; the first one counts.
    if (attr.name().empty() || list.get(attr.name()))
      continue;
    Attribute value = valueOf(attr, b);
    list.append(attr.name(),
                value ? value
                      : b.getStringAttr("attribute of kind " +
                                        std::to_string(attr.type())));
  }
  return list.getDictionary(context);
}
