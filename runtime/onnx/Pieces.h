// What a written model is put together from, so that weights are read when
// their turn comes and memory follows the graph.
#pragma once

#include "runtime/checkpoint/TensorStore.h"
#include "runtime/onnx/OnnxFile.h"

#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace merak::runtime {

// One piece of the output: text that is there, bytes of a mapped file, or a
// tensor that is read from the checkpoint when its turn comes.
struct Piece {
  std::string text;
  std::string_view mapped;
  std::string parameter;
  int64_t type = 0;
  uint64_t size = 0;
  // An initializer that was computed from the parameter.
  std::vector<std::string> functions; // applied first
  std::vector<int64_t> foldedTo, permutation;
};

// Bytes of all elements of a tensor in a type of ONNX.
uint64_t bytesOf(const StoredTensor &tensor, int64_t type);

// Appends a piece of text.
void addText(std::vector<Piece> &pieces, std::string text);

// `store` holds the parameters that pieces name.
Status writePiece(std::ofstream &file, const Piece &piece, TensorStore &store);

// What `body` writes becomes the file `path` when all of it is there.
Status writeFile(const std::string &path,
                 const std::function<Status(std::ofstream &)> &body);

} // namespace merak::runtime
