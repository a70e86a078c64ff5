// What an op is to the matrix product behind or in front of it: plain C++, for
// the ops that declare it and for planning.
#pragma once

namespace merak {

//   Bias          adds an operand along the last dimensions of the product
//   Gelu          GELU of its operand, in its tanh form
//   GeluGradient  operand 0 times the slope of GELU at operand 1
//   Cast          conversion of the element type
//   Sum           sums of the operand over some of its dimensions
enum class Epilogue { None, Bias, Gelu, GeluGradient, Cast, Sum };

} // namespace merak
