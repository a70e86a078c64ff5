// Mutations of a protobuf: of its bytes, and of its fields with all lengths
// kept right, so that the damage gets past the parser.
#pragma once

#include <random>
#include <string>
#include <vector>

namespace merak::fuzz {

using Random = std::mt19937_64;

// One to eight mutations of `model`; `others` lends pieces.
std::string mutate(const std::string &model,
                   const std::vector<std::string> &others, Random &random);

} // namespace merak::fuzz
