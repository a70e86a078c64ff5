// Mutations of a protobuf: of its bytes, and of its fields with all lengths
// kept right, so that the damage gets past the parser.
#pragma once

#include <random>
#include <string>
#include <vector>

namespace merak::fuzz {

using Random = std::mt19937_64;

// One to eight mutations of `model`; `others` lends pieces. What is no protobuf
// is taken as bytes.
std::string mutate(const std::string &model,
                   const std::vector<std::string> &others, Random &random);

// One to eight mutations of a text of numbers, names and punctuation, as JSON
// is: of its bytes, and of whole tokens.
std::string mutateText(const std::string &text, Random &random);

} // namespace merak::fuzz
