// Small ONNX models written in a few lines, imported from a scratch folder.
#pragma once

#include "compiler/Pipeline/Pipelines.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/MLIRContext.h"
#include "onnx/Import/Importer.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <unistd.h>
#include <vector>

namespace merak {

// The text form of a model. A dimension is a number, or a symbol in quotes.
class TextModel {
public:
  explicit TextModel(int opset = 17) : opset(opset) {}

  TextModel &input(const std::string &name, const std::string &dims,
                   int type = 1) {
    inputs += "  input { " + value(name, dims, type) + " }\n";
    return *this;
  }
  TextModel &output(const std::string &name, const std::string &dims = "",
                    int type = 1) {
    outputs += "  output { " + value(name, dims, type) + " }\n";
    return *this;
  }
  // `fields` in protobuf text: "float_data: 1 float_data: 2".
  TextModel &weight(const std::string &name, std::vector<int64_t> dims,
                    const std::string &fields, int type = 1) {
    weights += "  initializer { name: \"" + name +
               "\" data_type: " + std::to_string(type);
    for (int64_t dim : dims)
      weights += " dims: " + std::to_string(dim);
    weights += " " + fields + " }\n";
    return *this;
  }
  // All elements equal.
  TextModel &splat(const std::string &name, std::vector<int64_t> dims,
                   float number) {
    int64_t count = 1;
    for (int64_t dim : dims)
      count *= dim;
    std::string fields;
    for (int64_t i = 0; i < count; ++i)
      fields += "float_data: " + std::to_string(number) + " ";
    return weight(name, dims, fields);
  }
  TextModel &external(const std::string &name, std::vector<int64_t> dims,
                      const std::string &path) {
    return weight(name, dims,
                  "data_location: EXTERNAL external_data { key: \"location\" "
                  "value: \"" +
                      path + "\" }");
  }
  TextModel &node(const std::string &type, std::vector<std::string> in,
                  std::vector<std::string> out, const std::string &attrs = "",
                  const std::string &name = "") {
    nodes += "  node { op_type: \"" + type + "\" name: \"" +
             (name.empty() ? out[0] + "_node" : name) + "\"";
    for (const std::string &text : in)
      nodes += " input: \"" + text + "\"";
    for (const std::string &text : out)
      nodes += " output: \"" + text + "\"";
    nodes += " " + attrs + " }\n";
    return *this;
  }
  static std::string integer(const std::string &name, int64_t number) {
    return "attribute { name: \"" + name +
           "\" type: INT i: " + std::to_string(number) + " } ";
  }

  std::string text() const {
    return "ir_version: 8\nproducer_name: \"pytorch\"\nopset_import { "
           "version: " +
           std::to_string(opset) + " }\ngraph {\n  name: \"g\"\n" + nodes +
           inputs + outputs + weights + "}\n";
  }

private:
  static std::string value(const std::string &name, const std::string &dims,
                           int type) {
    std::string shape;
    for (size_t at = 0; at < dims.size();) {
      size_t end = std::min(dims.find(',', at), dims.size());
      std::string dim = dims.substr(at, end - at);
      bool isNumber = dim.find_first_not_of("0123456789") == std::string::npos;
      shape += isNumber ? " dim { dim_value: " + dim + " }"
                        : " dim { dim_param: \"" + dim + "\" }";
      at = end + 1;
    }
    return "name: \"" + name +
           "\" type { tensor_type { elem_type: " + std::to_string(type) +
           " shape {" + shape + " } } }";
  }

  int opset;
  std::string inputs, outputs, weights, nodes;
};

// What came out of an import, with every diagnostic as "place: message".
struct Imported {
  mlir::OwningOpRef<mlir::ModuleOp> module;
  ImportReport report;
  std::vector<std::string> errors;

  bool ok() const {
    return static_cast<bool>(
        *const_cast<mlir::OwningOpRef<mlir::ModuleOp> *>(&module));
  }
  bool says(const std::string &part) const {
    for (const std::string &error : errors)
      if (error.find(part) != std::string::npos)
        return true;
    return false;
  }
  std::string allErrors() const {
    std::string text;
    for (const std::string &error : errors)
      text += error + "\n";
    return text;
  }
  // Ops of the module by name.
  std::map<std::string, int> histogram() {
    std::map<std::string, int> count;
    if (module)
      module->walk([&](mlir::Operation *op) {
        ++count[op->getName().getStringRef().str()];
      });
    return count;
  }
  train::ParameterOp parameter(const std::string &name) {
    return module->lookupSymbol<train::ParameterOp>(name);
  }
};

class ImportFixture {
public:
  ImportFixture() {
    folder = std::filesystem::temp_directory_path() /
             ("merak-import-" + std::to_string(getpid()) + "-" +
              std::to_string(counter()++));
    std::filesystem::create_directories(folder);
  }
  ~ImportFixture() { std::filesystem::remove_all(folder); }

  std::string write(const std::string &name, const std::string &bytes) {
    std::filesystem::path path = folder / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    return path.string();
  }

  Imported import(const std::string &path, const ImportOptions &options = {},
                  bool raise = true) {
    Imported result;
    mlir::ScopedDiagnosticHandler handler(
        &context, [&](mlir::Diagnostic &diagnostic) {
          result.errors.push_back(describeLocation(diagnostic.getLocation()) +
                                  ": " + diagnostic.str());
          return mlir::success();
        });
    auto module = importOnnx(path, options, context, &result.report);
    if (failed(module))
      return result;
    result.module = std::move(*module);
    if (raise) {
      mlir::PassManager manager(&context);
      buildGraphImportPipeline(manager);
      if (failed(manager.run(*result.module)))
        result.module = nullptr;
    }
    return result;
  }
  Imported import(const TextModel &model, const ImportOptions &options = {},
                  bool raise = true) {
    return import(write("model.textproto", model.text()), options, raise);
  }

  std::filesystem::path folder;
  mlir::MLIRContext context;

private:
  static int &counter() {
    static int count = 0;
    return count;
  }
};

} // namespace merak
