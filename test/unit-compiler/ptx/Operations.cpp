// What instructions compute, by their names.
#include "runtime/core/HalfFloat.h"
#include "test/unit-compiler/ptx/Ptx.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <unordered_map>

namespace merak::ptx {

namespace {

template <typename T> T get(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
template <typename T> uint64_t put(T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

// bfloat16, by its bits: rounded to nearest, ties to even; one NaN.
struct Bf16 {
  uint16_t bits;
};
float asFloat(Bf16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}
Bf16 toBf16(float x) {
  if (std::isnan(x))
    return {0x7fff};
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
// IEEE's 16 bits.
struct F16 {
  uint16_t bits;
};

// A value between two floats becomes the odd one: what is rounded after that is
// rounded once.
float toOdd(double x) {
  const float near = static_cast<float>(x);
  if (std::isnan(x) || near == x || std::isinf(near))
    return near;
  float below = near;
  if (std::abs(static_cast<double>(near)) > std::abs(x))
    below = std::nextafter(near, 0.0f);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(below) | 1);
}

template <typename T, typename F> constexpr Operation unary(F) {
  return [](const uint64_t *in) { return put<T>(F()(get<T>(in[0]))); };
}
template <typename T, typename F> constexpr Operation binary(F) {
  return [](const uint64_t *in) {
    return put<T>(F()(get<T>(in[0]), get<T>(in[1])));
  };
}
template <typename T, typename F> constexpr Operation ternary(F) {
  return [](const uint64_t *in) {
    return put<T>(F()(get<T>(in[0]), get<T>(in[1]), get<T>(in[2])));
  };
}
template <typename T, typename F> constexpr Operation compare(F) {
  return [](const uint64_t *in) {
    return uint64_t(F()(get<T>(in[0]), get<T>(in[1])));
  };
}
template <typename To, typename From, typename F>
constexpr Operation convert(F) {
  return [](const uint64_t *in) { return put<To>(F()(get<From>(in[0]))); };
}

// Arithmetic of integers wraps.
template <typename T> using Unsigned = std::make_unsigned_t<T>;
template <typename T> T wrap(uint64_t value) { return static_cast<T>(value); }

template <typename T> T shiftLeft(T x, uint32_t by) {
  return by >= 8 * sizeof(T) ? T(0) : static_cast<T>(Unsigned<T>(x) << by);
}
template <typename T> T shiftRight(T x, uint32_t by) {
  const uint32_t most = 8 * sizeof(T) - 1;
  if (std::is_signed_v<T>)
    return static_cast<T>(x >> std::min(by, most));
  return by > most ? T(0) : static_cast<T>(x >> by);
}
// What the library would give for NaN: the other, unless asked otherwise.
template <typename T> T least(T a, T b) {
  return a == b ? (std::signbit(a) ? a : b) : std::fmin(a, b);
}
template <typename T> T most(T a, T b) {
  return a == b ? (std::signbit(a) ? b : a) : std::fmax(a, b);
}
template <typename T> T nanOr(T a, T b, T other) {
  return std::isnan(a) || std::isnan(b) ? std::numeric_limits<T>::quiet_NaN()
                                        : other;
}
// To an integer: clamped, NaN is 0.
template <typename To, typename From> To toInteger(From x) {
  if (std::isnan(x))
    return 0;
  if (x <= static_cast<From>(std::numeric_limits<To>::min()))
    return std::numeric_limits<To>::min();
  if (x >= static_cast<From>(std::numeric_limits<To>::max()))
    return std::numeric_limits<To>::max();
  return static_cast<To>(x);
}

using Table = std::unordered_map<std::string, Operation>;

template <typename T>
void addFloats(Table &table, const std::string &type, bool isDouble) {
  for (const char *rounding : {".rn.", "."}) {
    const std::string end = rounding + type;
    table["add" + end] = binary<T>([](T a, T b) { return a + b; });
    table["sub" + end] = binary<T>([](T a, T b) { return a - b; });
    table["mul" + end] = binary<T>([](T a, T b) { return a * b; });
  }
  const std::string dot = "." + type;
  table["div.rn" + dot] = binary<T>([](T a, T b) { return a / b; });
  table["fma.rn" + dot] =
      ternary<T>([](T a, T b, T c) { return std::fma(a, b, c); });
  table["rcp.rn" + dot] = unary<T>([](T a) { return 1 / a; });
  table["sqrt.rn" + dot] = unary<T>([](T a) { return std::sqrt(a); });
  table["neg" + dot] = unary<T>([](T a) { return -a; });
  table["abs" + dot] = unary<T>([](T a) { return std::abs(a); });
  table["min" + dot] = binary<T>([](T a, T b) { return least(a, b); });
  table["max" + dot] = binary<T>([](T a, T b) { return most(a, b); });
  table["min.NaN" + dot] =
      binary<T>([](T a, T b) { return nanOr(a, b, least(a, b)); });
  table["max.NaN" + dot] =
      binary<T>([](T a, T b) { return nanOr(a, b, most(a, b)); });
  // The sign of the first.
  table["copysign" + dot] =
      binary<T>([](T a, T b) { return std::copysign(b, a); });
  table["cvt.rni" + dot + dot] =
      unary<T>([](T a) { return std::nearbyint(a); });
  table["cvt.rzi" + dot + dot] = unary<T>([](T a) { return std::trunc(a); });
  table["cvt.rmi" + dot + dot] = unary<T>([](T a) { return std::floor(a); });
  table["cvt.rpi" + dot + dot] = unary<T>([](T a) { return std::ceil(a); });
  if (!isDouble)
    for (const char *name : {"ex2.approx", "ex2.approx.ftz"})
      table[name + dot] = unary<T>([](T a) { return std::exp2(a); });
  struct Compare {
    const char *name;
    Operation ordered, unordered;
  };
#define MERAK_COMPARE(name, op)                                                \
  Compare {                                                                    \
    name, compare<T>([](T a, T b) { return a op b; }),                         \
        compare<T>(                                                            \
            [](T a, T b) { return std::isnan(a) || std::isnan(b) || a op b; }) \
  }
  for (const Compare &c : {MERAK_COMPARE("eq", ==), MERAK_COMPARE("lt", <),
                           MERAK_COMPARE("le", <=), MERAK_COMPARE("gt", >),
                           MERAK_COMPARE("ge", >=)}) {
    table[std::string("setp.") + c.name + dot] = c.ordered;
    table[std::string("setp.") + c.name + "u" + dot] = c.unordered;
  }
#undef MERAK_COMPARE
  table["setp.ne" + dot] = compare<T>([](T a, T b) { return a < b || a > b; });
  table["setp.neu" + dot] = compare<T>([](T a, T b) { return a != b; });
  table["setp.nan" + dot] =
      compare<T>([](T a, T b) { return std::isnan(a) || std::isnan(b); });
  table["setp.num" + dot] =
      compare<T>([](T a, T b) { return !std::isnan(a) && !std::isnan(b); });
}

template <typename T> void addIntegers(Table &table, const std::string &type) {
  const std::string dot = "." + type;
  using U = Unsigned<T>;
  table["add" + dot] = binary<T>([](T a, T b) { return T(U(a) + U(b)); });
  table["sub" + dot] = binary<T>([](T a, T b) { return T(U(a) - U(b)); });
  table["mul.lo" + dot] = binary<T>(
      [](T a, T b) { return wrap<T>(uint64_t(U(a)) * uint64_t(U(b))); });
  table["mad.lo" + dot] = ternary<T>([](T a, T b, T c) {
    return wrap<T>(uint64_t(U(a)) * uint64_t(U(b)) + uint64_t(U(c)));
  });
  table["mul.hi" + dot] = binary<T>([](T a, T b) {
    using Wide =
        std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
    return static_cast<T>(Wide(a) * Wide(b) >> (8 * sizeof(T)));
  });
  table["div" + dot] = binary<T>([](T a, T b) { return b ? T(a / b) : T(-1); });
  table["rem" + dot] = binary<T>([](T a, T b) { return b ? T(a % b) : a; });
  table["min" + dot] = binary<T>([](T a, T b) { return std::min(a, b); });
  table["max" + dot] = binary<T>([](T a, T b) { return std::max(a, b); });
  table["neg" + dot] = unary<T>([](T a) { return T(U(0) - U(a)); });
  table["abs" + dot] = unary<T>([](T a) { return a < 0 ? T(U(0) - U(a)) : a; });
  table["shr" + dot] = [](const uint64_t *in) {
    return put<T>(shiftRight(get<T>(in[0]), get<uint32_t>(in[1])));
  };
  table["setp.eq" + dot] = compare<T>([](T a, T b) { return a == b; });
  table["setp.ne" + dot] = compare<T>([](T a, T b) { return a != b; });
  table["setp.lt" + dot] = compare<T>([](T a, T b) { return a < b; });
  table["setp.le" + dot] = compare<T>([](T a, T b) { return a <= b; });
  table["setp.gt" + dot] = compare<T>([](T a, T b) { return a > b; });
  table["setp.ge" + dot] = compare<T>([](T a, T b) { return a >= b; });
  table["cvt.rn.f32" + dot] =
      convert<float, T>([](T a) { return static_cast<float>(a); });
  table["cvt.rn.f64" + dot] =
      convert<double, T>([](T a) { return static_cast<double>(a); });
  table["cvt.rzi" + dot + ".f32"] =
      convert<T, float>([](float a) { return toInteger<T>(a); });
  table["cvt.rzi" + dot + ".f64"] =
      convert<T, double>([](double a) { return toInteger<T>(a); });
}

// Of any content of so many bits.
template <typename T> void addBits(Table &table, const std::string &type) {
  const std::string dot = "." + type;
  table["and" + dot] = binary<T>([](T a, T b) { return T(a & b); });
  table["or" + dot] = binary<T>([](T a, T b) { return T(a | b); });
  table["xor" + dot] = binary<T>([](T a, T b) { return T(a ^ b); });
  table["not" + dot] = unary<T>([](T a) { return T(~a); });
  table["shl" + dot] = [](const uint64_t *in) {
    return put<T>(shiftLeft(get<T>(in[0]), get<uint32_t>(in[1])));
  };
  table["shr" + dot] = [](const uint64_t *in) {
    return put<T>(shiftRight(get<T>(in[0]), get<uint32_t>(in[1])));
  };
  table["setp.eq" + dot] = compare<T>([](T a, T b) { return a == b; });
  table["setp.ne" + dot] = compare<T>([](T a, T b) { return a != b; });
}

// Copies and choices look at the width alone.
template <typename T> void addMoves(Table &table, const std::string &type) {
  table["mov." + type] = unary<T>([](T a) { return a; });
  table["selp." + type] = [](const uint64_t *in) {
    return put<T>(get<T>(in[2] & 1 ? in[0] : in[1]));
  };
}

template <typename To, typename From>
void addCast(Table &table, const std::string &to, const std::string &from) {
  table["cvt." + to + "." + from] =
      convert<To, From>([](From a) { return static_cast<To>(a); });
}
template <typename From> void addCasts(Table &table, const std::string &from) {
  addCast<uint8_t, From>(table, "u8", from);
  addCast<int8_t, From>(table, "s8", from);
  addCast<uint16_t, From>(table, "u16", from);
  addCast<int16_t, From>(table, "s16", from);
  addCast<uint32_t, From>(table, "u32", from);
  addCast<int32_t, From>(table, "s32", from);
  addCast<uint64_t, From>(table, "u64", from);
  addCast<int64_t, From>(table, "s64", from);
}

Table makeTable() {
  Table table;
  addFloats<float>(table, "f32", false);
  addFloats<double>(table, "f64", true);
  addIntegers<uint16_t>(table, "u16");
  addIntegers<int16_t>(table, "s16");
  addIntegers<uint32_t>(table, "u32");
  addIntegers<int32_t>(table, "s32");
  addIntegers<uint64_t>(table, "u64");
  addIntegers<int64_t>(table, "s64");
  addBits<uint16_t>(table, "b16");
  addBits<uint32_t>(table, "b32");
  addBits<uint64_t>(table, "b64");
  for (const char *kind : {"b", "u", "s", "f"}) {
    addMoves<uint16_t>(table, std::string(kind) + "16");
    addMoves<uint32_t>(table, std::string(kind) + "32");
    addMoves<uint64_t>(table, std::string(kind) + "64");
  }
  addCasts<uint8_t>(table, "u8");
  addCasts<int8_t>(table, "s8");
  addCasts<uint16_t>(table, "u16");
  addCasts<int16_t>(table, "s16");
  addCasts<uint32_t>(table, "u32");
  addCasts<int32_t>(table, "s32");
  addCasts<uint64_t>(table, "u64");
  addCasts<int64_t>(table, "s64");
  table["mul.wide.u16"] = [](const uint64_t *in) {
    return put(uint32_t(get<uint16_t>(in[0])) * get<uint16_t>(in[1]));
  };
  table["mul.wide.u32"] = [](const uint64_t *in) {
    return put(uint64_t(get<uint32_t>(in[0])) * get<uint32_t>(in[1]));
  };
  table["mul.wide.s32"] = [](const uint64_t *in) {
    return put(int64_t(get<int32_t>(in[0])) * get<int32_t>(in[1]));
  };
  table["mad.wide.u32"] = [](const uint64_t *in) {
    return put(uint64_t(get<uint32_t>(in[0])) * get<uint32_t>(in[1]) + in[2]);
  };
  table["mad.wide.s32"] = [](const uint64_t *in) {
    return put(uint64_t(int64_t(get<int32_t>(in[0])) * get<int32_t>(in[1])) +
               in[2]);
  };
  table["bfe.u32"] = [](const uint64_t *in) {
    const uint32_t from = in[1] & 255, count = in[2] & 255;
    const uint32_t bits = shiftRight(get<uint32_t>(in[0]), from);
    return put(count >= 32 ? bits : bits & ((1u << count) - 1));
  };
  // Bytes of two words, one for each four bits of the third.
  table["prmt.b32"] = [](const uint64_t *in) {
    const uint64_t both = get<uint32_t>(in[0]) | in[1] << 32;
    uint32_t out = 0;
    for (int i = 0; i < 4; ++i) {
      const uint32_t pick = in[2] >> (4 * i) & 15;
      uint32_t byte = both >> (8 * (pick & 7)) & 255;
      if (pick & 8)
        byte = byte & 128 ? 255 : 0;
      out |= byte << (8 * i);
    }
    return put(out);
  };
  table["cvta.to.global.u64"] = [](const uint64_t *in) { return in[0]; };
  table["cvt.f64.f32"] =
      convert<double, float>([](float a) { return double(a); });
  table["cvt.rn.f32.f64"] =
      convert<float, double>([](double a) { return static_cast<float>(a); });
  table["cvt.f32.bf16"] =
      convert<float, Bf16>([](Bf16 a) { return asFloat(a); });
  table["cvt.rn.bf16.f32"] =
      convert<Bf16, float>([](float a) { return toBf16(a); });
  // The first is the upper one.
  table["cvt.rn.bf16x2.f32"] = [](const uint64_t *in) {
    return put(uint32_t(toBf16(get<float>(in[0])).bits) << 16 |
               toBf16(get<float>(in[1])).bits);
  };
  table["fma.rn.bf16"] = ternary<Bf16>([](Bf16 a, Bf16 b, Bf16 c) {
    return toBf16(toOdd(
        std::fma(double(asFloat(a)), double(asFloat(b)), double(asFloat(c)))));
  });
  table["cvt.rn.f16.f32"] =
      convert<F16, float>([](float a) { return F16{runtime::floatToF16(a)}; });
  table["cvt.rn.f16x2.f32"] = [](const uint64_t *in) {
    return put(uint32_t(runtime::floatToF16(get<float>(in[0]))) << 16 |
               runtime::floatToF16(get<float>(in[1])));
  };
  // An f32 holds enough digits of a sum or a product of two.
  auto halves = [](auto compute) {
    return [](const uint64_t *in) {
      return put(F16{runtime::floatToF16(
          decltype(compute)()(runtime::f16ToFloat(get<F16>(in[0]).bits),
                              runtime::f16ToFloat(get<F16>(in[1]).bits)))});
    };
  };
  table["add.rn.f16"] = table["add.f16"] =
      halves([](float a, float b) { return a + b; });
  table["sub.rn.f16"] = table["sub.f16"] =
      halves([](float a, float b) { return a - b; });
  table["mul.rn.f16"] = table["mul.f16"] =
      halves([](float a, float b) { return a * b; });
  table["neg.f16"] =
      unary<F16>([](F16 a) { return F16{uint16_t(a.bits ^ 0x8000)}; });
  table["abs.f16"] =
      unary<F16>([](F16 a) { return F16{uint16_t(a.bits & 0x7fff)}; });
  table["cvt.rn.f16.f64"] = convert<F16, double>(
      [](double a) { return F16{runtime::floatToF16(toOdd(a))}; });
  table["cvt.f32.f16"] =
      convert<float, F16>([](F16 a) { return runtime::f16ToFloat(a.bits); });
  table["cvt.f64.f16"] = convert<double, F16>(
      [](F16 a) { return double(runtime::f16ToFloat(a.bits)); });
  table["neg.bf16"] =
      unary<Bf16>([](Bf16 a) { return Bf16{uint16_t(a.bits ^ 0x8000)}; });
  table["abs.bf16"] =
      unary<Bf16>([](Bf16 a) { return Bf16{uint16_t(a.bits & 0x7fff)}; });
  // Predicates are 0 or 1.
  table["and.pred"] = [](const uint64_t *in) { return in[0] & in[1]; };
  table["or.pred"] = [](const uint64_t *in) { return in[0] | in[1]; };
  table["xor.pred"] = [](const uint64_t *in) { return in[0] ^ in[1]; };
  table["not.pred"] = [](const uint64_t *in) { return in[0] ^ 1; };
  table["mov.pred"] = [](const uint64_t *in) { return in[0] & 1; };
  return table;
}

} // namespace

Operation operationOf(const std::string &name) {
  static const Table table = makeTable();
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

} // namespace merak::ptx
