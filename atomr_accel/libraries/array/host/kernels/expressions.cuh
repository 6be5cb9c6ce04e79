// What kernels of expressions are made of: element types, casts, and NumPy's functions.
//
// In registers a float of 16 bits or less is a float that its type can hold; round_to<T> makes it
// one again after each function, as NumPy does, so that put<T> has nothing to round.
#pragma once

#include "conversions.cuh"
#include "types.cuh"

#define FN __device__ __forceinline__

typedef signed char i8;
typedef unsigned char u8;

// --- floats of 8 bits and less ---------------------------------------------------------------

FN float power_of_two(int e) { return __uint_as_float((unsigned)(e + 127) << 23); }

// The nearest number of few digits, ties to even; bits without the sign.
template <int E, int M, int BIAS> FN unsigned nearest_small(float size) {
  const unsigned bits = __float_as_uint(size);
  int exponent = (int)(bits >> 23) - 127;
  if (exponent < 1 - BIAS) exponent = 1 - BIAS;
  const float digits = rintf(size * power_of_two(M - exponent));  // scaled exactly
  return ((unsigned)(exponent + BIAS - 1) << M) + (unsigned)digits;
}
template <int E, int M, int BIAS> FN float small_value(unsigned bits) {
  const int exponent = (int)(bits >> M) & ((1 << E) - 1);
  const int digits = (int)(bits & ((1u << M) - 1));
  return exponent ? (float)(digits + (1 << M)) * power_of_two(exponent - BIAS - M)
                  : (float)digits * power_of_two(1 - BIAS - M);
}
struct e4m3 { u8 bits; };  // float8_e4m3fn: no infinity, one NaN
struct e5m2 { u8 bits; };
struct e2m1 { u8 bits; };  // float4_e2m1fn, one in a byte: neither infinity nor NaN
FN float signed_as(float size, unsigned bits) { return bits ? -size : size; }
FN float widen(e4m3 v) {
  if ((v.bits & 127) == 127) return __uint_as_float(0x7fc00000u);
  return signed_as(small_value<4, 3, 7>(v.bits & 127), v.bits & 128);
}
FN float widen(e5m2 v) {
  if ((v.bits & 127) > 124) return __uint_as_float(0x7fc00000u);
  if ((v.bits & 127) == 124) return __uint_as_float(v.bits & 128 ? 0xff800000u : 0x7f800000u);
  return signed_as(small_value<5, 2, 15>(v.bits & 127), v.bits & 128);
}
FN float widen(e2m1 v) { return signed_as(small_value<2, 1, 1>(v.bits & 7), v.bits & 8); }
FN void narrow(e4m3& t, float value) {
  const unsigned sign = __float_as_uint(value) >> 31;
  const float size = fabsf(value);
  const unsigned bits = size <= 464.0f ? nearest_small<4, 3, 7>(size) : 127u;
  t.bits = (u8)(sign << 7 | bits);
}
FN void narrow(e5m2& t, float value) {
  const unsigned sign = __float_as_uint(value) >> 31;
  const float size = fabsf(value);
  const unsigned bits = size < 61440.0f    ? nearest_small<5, 2, 15>(size)
                        : size >= 61440.0f ? 124u
                                           : 126u;
  t.bits = (u8)(sign << 7 | bits);
}
FN void narrow(e2m1& t, float value) {
  const unsigned sign = __float_as_uint(value) >> 31;
  const float size = fabsf(value);
  const unsigned bits = size < 6.0f ? nearest_small<2, 1, 1>(size) : 7u;
  t.bits = (u8)(size == size ? sign << 3 | bits : 8u);
}

// --- complex numbers --------------------------------------------------------------------------

template <class T> struct alignas(2 * sizeof(T)) complex_of { T re, im; };
typedef complex_of<float> c64;
typedef complex_of<double> c128;

// --- elements in memory and in registers ------------------------------------------------------

template <class S>
struct stored {
  typedef S type;
  static FN S get(S v) { return v; }
  static FN S put(S v) { return v; }
};
struct flag { u8 bits; };
template <> struct stored<flag> {
  typedef bool type;
  static FN bool get(flag v) { return v.bits != 0; }
  static FN flag put(bool v) { return flag{(u8)v}; }
};
template <class S> struct stored_small {
  typedef float type;
  static FN float get(S v) { return widen(v); }
  static FN S put(float v) { S t; narrow(t, v); return t; }
};
template <> struct stored<h16> : stored_small<h16> {};
template <> struct stored<b16> : stored_small<b16> {
  static FN b16 put(float v) { return b16{(unsigned short)(__float_as_uint(v) >> 16)}; }
};
template <> struct stored<e4m3> : stored_small<e4m3> {};
template <> struct stored<e5m2> : stored_small<e5m2> {};
template <> struct stored<e2m1> : stored_small<e2m1> {};
template <class S> FN typename stored<S>::type get(S v) { return stored<S>::get(v); }
template <class S> FN S put(typename stored<S>::type v) { return stored<S>::put(v); }
template <class S> FN float round_to(float v) { return widen(put<S>(v)); }
template <> FN float round_to<b16>(float v) { return round_b16(v); }

template <class T, int N> struct alignas(sizeof(T) * N) pack { T v[N]; };

template <class T> FN T number_at(const u64* words) {
  union { u64 w[(sizeof(T) + 7) / 8]; T v; } bits;
#pragma unroll
  for (int i = 0; i < (int)((sizeof(T) + 7) / 8); ++i) bits.w[i] = words[i];
  return bits.v;
}

// --- casts ------------------------------------------------------------------------------------

template <class T> struct is_float { static const bool value = false; };
template <> struct is_float<float> { static const bool value = true; };
template <> struct is_float<double> { static const bool value = true; };
template <class T> struct is_signed { static const bool value = (T)-1 < (T)0; };

// What x86 makes of numbers that integers do not hold.
FN i64 whole(double x) {
  return x >= -9223372036854775808.0 && x < 9223372036854775808.0 ? (i64)x : (i64)(1ull << 63);
}
FN int whole32(double x) {
  return x > -2147483649.0 && x < 2147483648.0 ? (int)x : (int)(1u << 31);
}
FN u64 whole_u64(double x) {
  return x < 9223372036854775808.0 ? (u64)whole(x)
                                   : (u64)whole(x - 9223372036854775808.0) ^ (1ull << 63);
}
template <class T> struct to {
  template <class S> static FN T of(S x) { return (T)x; }
  static FN T floating(double x) { return sizeof(T) < 4 ? (T)whole32(x) : (T)whole(x); }
  static FN T of(float x) { return floating(x); }
  static FN T of(double x) { return floating(x); }
  template <class S> static FN T of(complex_of<S> x) { return of(x.re); }
};
template <> FN int to<int>::floating(double x) { return whole32(x); }
template <> FN u64 to<u64>::floating(double x) { return whole_u64(x); }
template <> struct to<float> {
  template <class S> static FN float of(S x) { return (float)x; }
  template <class S> static FN float of(complex_of<S> x) { return (float)x.re; }
};
template <> struct to<double> {
  template <class S> static FN double of(S x) { return (double)x; }
  template <class S> static FN double of(complex_of<S> x) { return (double)x.re; }
};
template <> struct to<bool> {
  template <class S> static FN bool of(S x) { return x != 0; }
  template <class S> static FN bool of(complex_of<S> x) { return x.re != 0 || x.im != 0; }
};
template <class R> struct to_complex {
  template <class S> static FN complex_of<R> of(S x) { return complex_of<R>{(R)x, 0}; }
  template <class S>
  static FN complex_of<R> of(complex_of<S> x) {
    return complex_of<R>{(R)x.re, (R)x.im};
  }
};
template <> struct to<c64> : to_complex<float> {};
template <> struct to<c128> : to_complex<double> {};

// --- arithmetic -------------------------------------------------------------------------------

template <class T> struct wide_of { typedef unsigned type; };  // arithmetic that wraps
template <> struct wide_of<i64> { typedef u64 type; };
template <> struct wide_of<u64> { typedef u64 type; };
#define WRAPPING(name, op)                               \
  template <class T>                                     \
  FN T f_##name(T a, T b) {                              \
    typedef typename wide_of<T>::type W;                 \
    return (T)((W)a op(W) b);                            \
  }                                                      \
  FN float f_##name(float a, float b) { return a op b; } \
  FN double f_##name(double a, double b) { return a op b; }
WRAPPING(add, +)
WRAPPING(subtract, -)
WRAPPING(multiply, *)
FN bool f_add(bool a, bool b) { return a || b; }
FN bool f_multiply(bool a, bool b) { return a && b; }
template <class T>
FN T f_negative(T a) {
  typedef typename wide_of<T>::type W;
  return (T)((W)0 - (W)a);
}
FN float f_negative(float a) { return -a; }
FN double f_negative(double a) { return -a; }
template <class T> FN T f_positive(T a) { return a; }
template <class T> FN T f_square(T a) { return f_multiply(a, a); }
template <class T> FN T f_conjugate(T a) { return a; }
template <class T> FN T f_absolute(T a) { return a < 0 ? f_negative(a) : a; }
FN bool f_absolute(bool a) { return a; }
FN float f_absolute(float a) { return fabsf(a); }
FN double f_absolute(double a) { return fabs(a); }
template <class T> FN T f_fabs(T a) { return f_absolute(a); }
FN float f_divide(float a, float b) { return a / b; }
FN double f_divide(double a, double b) { return a / b; }
template <class T> FN T f_reciprocal(T a) { return to<T>::of(1.0 / (double)a); }
FN float f_reciprocal(float a) { return 1.0f / a; }
FN double f_reciprocal(double a) { return 1.0 / a; }

// Quotients of many numbers and one, whose reciprocal the compiler has computed once: those of
// f_divide, as long as `sure` stays. No branch, so that there are several at a time.
template <class S> FN float f_over(float a, float b, bool& sure);
FN bool between(float size, int least, int most) {
  return (size >= power_of_two(least)) & (size <= power_of_two(most));
}
FN float corrected(float a, float b, float reciprocal, float quotient) {
  return fmaf(fmaf(-quotient, b, a), reciprocal, quotient);
}
template <> FN float f_over<float>(float a, float b, bool& sure) {
  const float r = 1.0f / b, q = a * r;
  sure &= between(fabsf(b), -60, 60) & (between(fabsf(a), -60, 60) | (a == 0));
  // Each time with less of an error; zeros have their sign of the first.
  return copysignf(corrected(a, b, r, corrected(a, b, r, q)), q);
}
template <> FN float f_over<h16>(float a, float b, bool&) {  // all are far from a float's ends
  const float r = 1.0f / b, q = a * r, better = corrected(a, b, r, corrected(a, b, r, q));
  return (q != 0) & (fabsf(q) < __uint_as_float(0x7f800000u)) ? better : q;
}
template <> FN float f_over<b16>(float a, float b, bool& sure) {  // none is near where b16 turn
  const float r = 1.0f / b, q = a * r;
  sure &= ((fabsf(b) >= power_of_two(-126)) | (b == 0)) &
          ((fabsf(q) >= power_of_two(-120)) | (a == 0));
  return q;
}

template <class T> FN bool f_isnan(T) { return false; }
FN bool f_isnan(float a) { return a != a; }
FN bool f_isnan(double a) { return a != a; }
template <class T> FN bool f_isinf(T) { return false; }
FN bool f_isinf(float a) { return fabsf(a) == __uint_as_float(0x7f800000u); }
FN bool f_isinf(double a) { return fabs(a) == (double)__uint_as_float(0x7f800000u); }
template <class T> FN bool f_isfinite(T) { return true; }
FN bool f_isfinite(float a) { return fabsf(a) < __uint_as_float(0x7f800000u); }
FN bool f_isfinite(double a) { return fabs(a) < (double)__uint_as_float(0x7f800000u); }
FN bool f_signbit(float a) { return __float_as_uint(a) >> 31; }
FN bool f_signbit(double a) { return copysign(1.0, a) < 0; }
template <class T> FN T f_sign(T a) { return a > 0 ? (T)1 : a < 0 ? (T)-1 : a == 0 ? (T)0 : a; }

// One function for floats and one for doubles.
#define UNARY(name, fn) \
  FN float f_##name(float a) { return fn##f(a); } \
  FN double f_##name(double a) { return fn(a); }
#define BINARY(name, fn) \
  FN float f_##name(float a, float b) { return fn##f(a, b); } \
  FN double f_##name(double a, double b) { return fn(a, b); }
UNARY(sqrt, sqrt) UNARY(cbrt, cbrt) UNARY(exp, exp) UNARY(exp2, exp2) UNARY(expm1, expm1)
UNARY(log, log) UNARY(log2, log2) UNARY(log10, log10) UNARY(log1p, log1p)
UNARY(sin, sin) UNARY(cos, cos) UNARY(tan, tan) UNARY(arcsin, asin) UNARY(arccos, acos)
UNARY(arctan, atan) UNARY(sinh, sinh) UNARY(cosh, cosh) UNARY(tanh, tanh)
UNARY(arcsinh, asinh) UNARY(arccosh, acosh) UNARY(arctanh, atanh)
UNARY(erf, erf) UNARY(erfc, erfc) UNARY(gammaln, lgamma)
BINARY(arctan2, atan2) BINARY(hypot, hypot) BINARY(copysign, copysign) BINARY(nextafter, nextafter)
template <class T> FN T f_floor(T a) { return a; }
template <class T> FN T f_ceil(T a) { return a; }
template <class T> FN T f_trunc(T a) { return a; }
UNARY(floor, floor) UNARY(ceil, ceil) UNARY(trunc, trunc) UNARY(rint, rint)
FN float f_erfinv(float a) { return erfinvf(a); }
FN double f_erfinv(double a) { return erfinv(a); }
FN float f_erfcinv(float a) { return erfcinvf(a); }
FN double f_erfcinv(double a) { return erfcinv(a); }
template <class T> FN T f_gamma(T a) { return a == 0 ? (T)1 / a : tgamma(a); }
template <class T> FN T f_deg2rad(T a) { return a * (T)(3.14159265358979323846 / 180); }
template <class T> FN T f_radians(T a) { return f_deg2rad(a); }
template <class T> FN T f_rad2deg(T a) { return a * (T)(180 / 3.14159265358979323846); }
template <class T> FN T f_degrees(T a) { return f_rad2deg(a); }
template <class T> FN T f_spacing(T a) {
  if (!f_isfinite(a)) return a - a;
  return f_nextafter(a, f_copysign((T)__uint_as_float(0x7f800000u), a)) - a;
}
template <class T> FN T f_ldexp(T a, int e) { return (T)ldexp(a, e); }
template <class T>
FN T f_ldexp(T a, i64 e) {
  return (T)ldexp(a, (int)(e > 9999 ? 9999 : e < -9999 ? -9999 : e));
}
template <class T>
FN T f_heaviside(T a, T half) {
  return a != a ? a : a == 0 ? half : a < 0 ? (T)0 : (T)1;
}
template <class T> FN T f_logaddexp(T a, T b) {
  if (a == b) return a + (T)0.693147180559945309417;
  const T d = a - b;
  return d > 0 ? a + f_log1p(f_exp(-d)) : d <= 0 ? b + f_log1p(f_exp(d)) : d;
}
template <class T> FN T f_logaddexp2(T a, T b) {
  if (a == b) return a + 1;
  const T d = a - b, scale = (T)1.44269504088896340736;
  return d > 0 ? a + scale * f_log1p(f_exp2(-d)) : d <= 0 ? b + scale * f_log1p(f_exp2(d)) : d;
}
template <class T>
FN T f_modf_0(T a) {
  return f_isinf(a) ? f_copysign((T)0, a) : f_copysign(a - f_trunc(a), a);
}
template <class T> FN T f_modf_1(T a) { return f_trunc(a); }
template <class T> FN T f_frexp_0(T a) { int e; return (T)frexp(a, &e); }
template <class T> FN int f_frexp_1(T a) { int e = 0; frexp(a, &e); return f_isfinite(a) ? e : 0; }

// SciPy's
template <class T> FN T f_expit(T a) { return 1 / (1 + f_exp(-a)); }
template <class T> FN T f_logit(T a) { return f_log(a / (1 - a)); }
template <class T> FN T f_xlogy(T a, T b) { return a == 0 && b == b ? (T)0 : a * f_log(b); }
template <class T> FN T f_xlog1py(T a, T b) { return a == 0 && b == b ? (T)0 : a * f_log1p(b); }
template <class T> FN T f_ndtr(T a) { return (T)0.5 * f_erfc(-a * (T)0.70710678118654752440); }
template <class T> FN T f_entr(T a) {
  return a != a ? a : a > 0 ? -a * f_log(a) : a == 0 ? (T)0 : -(T)__uint_as_float(0x7f800000u);
}
template <class T> FN T f_rel_entr(T a, T b) {
  if (a != a || b != b) return a + b;
  return a > 0 && b > 0     ? a * f_log(a / b)
         : a == 0 && b >= 0 ? (T)0
                            : (T)__uint_as_float(0x7f800000u);
}

// Those below are computed in double for floats, too: terms cancel, and between its zeros a Bessel
// function of floats has few right digits.
#define BY_DOUBLE(name, fn) \
  FN double f_##name(double a) { return fn(a); } \
  FN float f_##name(float a) { return (float)fn((double)a); }
BY_DOUBLE(ndtri, normcdfinv) BY_DOUBLE(i0, cyl_bessel_i0) BY_DOUBLE(i1, cyl_bessel_i1)
BY_DOUBLE(j0, j0) BY_DOUBLE(j1, j1) BY_DOUBLE(y0, y0) BY_DOUBLE(y1, y1)

// By the recurrence up to 10, and the asymptotic series from there. Divisions are slow: for a float
// all that the reflection and the recurrence subtract is one fraction.
template <bool FLOAT> FN double digamma(double a) {
  double sum = 0, above = 0, below = 1;
  if (a <= 0) {
    if (a == 0) return -1 / a;
    const double rest = a - rint(a);
    if (rest == 0) return rest / rest;
    sincospi(rest, &below, &above);
    above *= 3.14159265358979323846;
    a = 1 - a;
  }
  for (; a < 10; a += 1) {
    above = above * a + below;
    below *= a;
    if (!FLOAT) sum += above / below, above = 0, below = 1;
  }
  const double x = 1 / a, y = x * x;
  const double s = 1. / 240 - y * (1. / 132 - y * (691. / 32760 - y * (1. / 12)));
  return log(a) - sum - above / below - 0.5 * x -
         y * (1. / 12 - y * (1. / 120 - y * (1. / 252 - y * s)));
}
FN double f_psi(double a) { return digamma<false>(a); }
FN float f_psi(float a) { return (float)digamma<true>((double)a); }

FN bool is_pole(double a) { return a <= 0 && a == floor(a); }
// What log(gamma(a)) has beside Stirling's formula, from 10 on.
FN double beyond_stirling(double a) {
  const double y = 1 / a / a;
  const double s = 1. / 1188 - y * (691. / 360360 - y * (1. / 156 - y * 3617. / 122400));
  return (1. / 12 - y * (1. / 360 - y * (1. / 1260 - y * (1. / 1680 - y * s)))) / a;
}
FN double f_betaln(double a, double b) {
  if (a != a || b != b) return a + b;
  if (is_pole(b)) { const double c = a; a = b; b = c; }
  if (is_pole(a)) {  // finite only if one of gamma(a + b) cancels it
    if (b != floor(b) || b <= 0 || a + b > 0) return (double)__uint_as_float(0x7f800000u);
    a = 1 - a - b;
  }
  if (a > b) { const double c = a; a = b; b = c; }
  if (f_isinf(b)) return f_isinf(a) || a < 0 ? b - b : -b;
  if (b < 10 || a < -b / 2) return lgamma(a) + lgamma(b) - lgamma(a + b);
  const double rest = beyond_stirling(b) - beyond_stirling(a + b);
  if (a < 10) return lgamma(a) + rest - (a + b - 0.5) * log1p(a / b) - a * (log(b) - 1);
  return 0.918938533204672741780 + beyond_stirling(a) + rest - b * log1p(a / b) +
         (a - 0.5) * log(a / (a + b)) - 0.5 * log(b);
}
FN float f_betaln(float a, float b) { return (float)f_betaln((double)a, (double)b); }
FN double f_beta(double a, double b) {
  if (is_pole(a) || is_pole(b)) {
    const double size = exp(f_betaln(a, b));
    return fmod(is_pole(a) ? b : a, 2.0) == 0 || f_isinf(size) ? size : -size;
  }
  if (is_pole(a + b)) return 0;
  if (fabs(a) < 10 && fabs(b) < 10) return tgamma(a) / tgamma(a + b) * tgamma(b);
  const double each[] = {a, b, a + b};
  int turns = 0;
  for (const double c : each) turns += c < 0 && fmod(floor(c), 2.0) != 0;
  return turns % 2 ? -exp(f_betaln(a, b)) : exp(f_betaln(a, b));
}
FN float f_beta(float a, float b) { return (float)f_beta((double)a, (double)b); }

// Division with remainders as Python has it; by zero an integer gives zero.
template <class T> FN T f_fmod(T a, T b) {
  if (b == 0) return 0;
  return is_signed<T>::value && b == (T)-1 ? (T)0 : (T)(a % b);
}
FN float f_fmod(float a, float b) { return fmodf(a, b); }
FN double f_fmod(double a, double b) { return fmod(a, b); }
template <class T> FN T f_remainder(T a, T b) {
  const T rest = f_fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? (T)(rest + b) : rest;
}
template <class T> FN T f_floor_divide(T a, T b) {
  if (b == 0) return 0;
  if (is_signed<T>::value && b == (T)-1) return f_negative(a);
  const T quotient = (T)(a / b);
  return (T)(quotient * b) != a && (a < 0) != (b < 0) ? (T)(quotient - 1) : quotient;
}
template <class T> FN T float_remainder(T a, T b) {
  const T rest = f_fmod(a, b);
  if (b == 0) return rest;
  if (rest != 0) return (b < 0) != (rest < 0) ? rest + b : rest;
  return f_copysign((T)0, b);
}
template <class T> FN T float_floor_divide(T a, T b) {
  if (b == 0) return a / b;
  T rest = f_fmod(a, b);
  T quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
  if (quotient == 0) return f_copysign((T)0, a / b);
  const T below = f_floor(quotient);
  return quotient - below > (T)0.5 ? below + 1 : below;
}
FN float f_remainder(float a, float b) { return float_remainder(a, b); }
FN double f_remainder(double a, double b) { return float_remainder(a, b); }
FN float f_floor_divide(float a, float b) { return float_floor_divide(a, b); }
FN double f_floor_divide(double a, double b) { return float_floor_divide(a, b); }
template <class A, class B>
FN auto f_divmod_0(A a, B b) -> decltype(f_floor_divide(a, b)) {
  return f_floor_divide(a, b);
}
template <class A, class B>
FN auto f_divmod_1(A a, B b) -> decltype(f_remainder(a, b)) {
  return f_remainder(a, b);
}

// Integers: a negative exponent leaves what is left of the fraction, which is 0, 1 or -1.
template <class T> FN T f_power(T a, T b) {
  if (b < 0) return a == (T)1 ? a : is_signed<T>::value && a == (T)-1 ? (b & 1 ? a : (T)1) : (T)0;
  typedef typename wide_of<T>::type W;
  W result = 1, base = (W)a;
  for (; b; b = (T)(b >> 1)) {
    if (b & 1) result *= base;
    base *= base;
  }
  return (T)result;
}
FN float f_power(float a, float b) { return powf(a, b); }
FN double f_power(double a, double b) { return pow(a, b); }
template <class T> FN T f_float_power(T a, T b) { return f_power(a, b); }

// --- bits, order, logic ------------------------------------------------------------------------

template <class T> FN T f_bitwise_and(T a, T b) { return (T)(a & b); }
template <class T> FN T f_bitwise_or(T a, T b) { return (T)(a | b); }
template <class T> FN T f_bitwise_xor(T a, T b) { return (T)(a ^ b); }
template <class T> FN T f_invert(T a) { return (T)~a; }
FN bool f_invert(bool a) { return !a; }
template <class T> FN T f_left_shift(T a, T b) {
  typedef typename wide_of<T>::type W;
  return (u64)(i64)b < 8 * sizeof(T) ? (T)((W)a << (int)b) : (T)0;
}
template <class T> FN T f_right_shift(T a, T b) {
  return (u64)(i64)b < 8 * sizeof(T) ? (T)(a >> (int)b) : a < 0 ? (T)-1 : (T)0;
}
template <class T> FN u8 f_bitwise_count(T a) {
  u64 rest = (u64)f_absolute(a);
  if (sizeof(T) < 8) rest &= (1ull << (8 * sizeof(T) % 64)) - 1;
  u8 count = 0;
  for (; rest; rest &= rest - 1) ++count;
  return count;
}
template <class T> FN T f_gcd(T a, T b) {
  a = f_absolute(a);
  b = f_absolute(b);
  while (a != 0) {
    const T rest = f_fmod(b, a);
    b = a;
    a = rest;
  }
  return b;
}
template <class T> FN T f_lcm(T a, T b) {
  const T common = f_gcd(a, b);
  return common == 0 ? (T)0 : f_multiply((T)(f_absolute(a) / common), f_absolute(b));
}

template <class T> FN bool f_less(T a, T b) { return a < b; }
template <class T> FN bool f_equal(T a, T b) { return a == b; }
FN bool f_less(i64 a, u64 b) { return a < 0 || (u64)a < b; }
FN bool f_less(u64 a, i64 b) { return b >= 0 && a < (u64)b; }
FN bool f_equal(i64 a, u64 b) { return a >= 0 && (u64)a == b; }
FN bool f_equal(u64 a, i64 b) { return f_equal(b, a); }
template <class T>
FN bool f_less(complex_of<T> a, complex_of<T> b) {
  return a.re < b.re || (a.re == b.re && a.im < b.im);
}
template <class T>
FN bool f_equal(complex_of<T> a, complex_of<T> b) {
  return a.re == b.re && a.im == b.im;
}
template <class A, class B> FN bool f_greater(A a, B b) { return f_less(b, a); }
template <class A, class B> FN bool f_not_equal(A a, B b) { return !f_equal(a, b); }
template <class A, class B> FN bool f_less_equal(A a, B b) { return f_less(a, b) || f_equal(a, b); }
template <class A, class B>
FN bool f_greater_equal(A a, B b) {
  return f_less(b, a) || f_equal(a, b);
}

template <class T> FN bool f_isnan(complex_of<T> a) { return f_isnan(a.re) || f_isnan(a.im); }
template <class T> FN T f_maximum(T a, T b) { return f_isnan(a) || f_greater_equal(a, b) ? a : b; }
template <class T> FN T f_minimum(T a, T b) { return f_isnan(a) || f_less_equal(a, b) ? a : b; }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
FN float f_maximum(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
FN float f_minimum(float a, float b) {
  float c;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
#endif
template <class T> FN T f_fmax(T a, T b) { return f_isnan(b) || f_greater_equal(a, b) ? a : b; }
template <class T> FN T f_fmin(T a, T b) { return f_isnan(b) || f_less_equal(a, b) ? a : b; }

template <class T> FN bool f_logical_and(T a, T b) { return to<bool>::of(a) && to<bool>::of(b); }
template <class T> FN bool f_logical_or(T a, T b) { return to<bool>::of(a) || to<bool>::of(b); }
template <class T> FN bool f_logical_xor(T a, T b) { return to<bool>::of(a) != to<bool>::of(b); }
template <class T> FN bool f_logical_not(T a) { return !to<bool>::of(a); }
template <class T> FN T f_where(bool c, T a, T b) { return c ? a : b; }

#include "complex.cuh"

// --- reductions --------------------------------------------------------------------------------

template <class T>
struct least {
  static FN T of() { return is_signed<T>::value ? (T)((T)1 << (8 * sizeof(T) - 1)) : (T)0; }
};
template <> struct least<bool> { static FN bool of() { return false; } };
template <> struct least<float> { static FN float of() { return -__uint_as_float(0x7f800000u); } };
template <>
struct least<double> {
  static FN double of() { return -(double)__uint_as_float(0x7f800000u); }
};
template <class T>
struct least<complex_of<T>> {
  static FN complex_of<T> of() { return complex_of<T>{least<T>::of(), least<T>::of()}; }
};
template <class T> struct most { static FN T of() { return (T)~least<T>::of(); } };
template <> struct most<bool> { static FN bool of() { return true; } };
template <> struct most<float> { static FN float of() { return __uint_as_float(0x7f800000u); } };
template <>
struct most<double> {
  static FN double of() { return (double)__uint_as_float(0x7f800000u); }
};
template <class T>
struct most<complex_of<T>> {
  static FN complex_of<T> of() { return complex_of<T>{most<T>::of(), most<T>::of()}; }
};
template <class T>
struct nothing {
  static FN T fmax() { return least<T>::of(); }
  static FN T fmin() { return most<T>::of(); }
};
template <class T>
struct nan_of {
  static FN T fmax() { return (T)__uint_as_float(0x7fc00000u); }
  static FN T fmin() { return fmax(); }
};
template <> struct nothing<float> : nan_of<float> {};
template <> struct nothing<double> : nan_of<double> {};

#define REDUCTION(name, first) \
  struct r_##name { \
    template <class T> static FN T identity() { return first; } \
    template <class T> static FN T of(T a, T b) { return f_##name(a, b); } \
  };
REDUCTION(add, to<T>::of(0))
REDUCTION(multiply, to<T>::of(1))
REDUCTION(maximum, least<T>::of())
REDUCTION(minimum, most<T>::of())
REDUCTION(fmax, nothing<T>::fmax())
REDUCTION(fmin, nothing<T>::fmin())
REDUCTION(logical_and, true)
REDUCTION(logical_or, false)
REDUCTION(bitwise_and, (T)~(T)0)
REDUCTION(bitwise_or, (T)0)
REDUCTION(bitwise_xor, (T)0)

// An element with its place; -1 where there is none yet.
template <class T> struct placed { T v; i64 at; };
template <class T, class BETTER> FN placed<T> better(placed<T> a, placed<T> b, BETTER first) {
  if (a.at < 0) return b;
  if (b.at < 0) return a;
  const bool one = f_isnan(a.v), other = f_isnan(b.v);
  if (one || other) return one && (!other || a.at < b.at) ? a : b;
  if (first(a.v, b.v)) return a;
  if (first(b.v, a.v)) return b;
  return a.at < b.at ? a : b;
}
struct is_greater { template <class T> FN bool operator()(T a, T b) const { return b < a; } };
struct is_less { template <class T> FN bool operator()(T a, T b) const { return a < b; } };
struct r_argmax {
  template <class P> static FN P identity() { P p; p.v = decltype(p.v)(); p.at = -1; return p; }
  template <class P> static FN P of(P a, P b) { return better(a, b, is_greater()); }
};
struct r_argmin {
  template <class P> static FN P identity() { return r_argmax::identity<P>(); }
  template <class P> static FN P of(P a, P b) { return better(a, b, is_less()); }
};

// What the thread has whose number in the warp differs in these bits.
template <class T> FN T exchanged(T value, int bits) {
  union { unsigned w[(sizeof(T) + 3) / 4]; T v; } mine, other;
  mine.w[(sizeof(T) - 1) / 4] = 0;
  mine.v = value;
#pragma unroll
  for (int i = 0; i < (int)((sizeof(T) + 3) / 4); ++i)
    other.w[i] = __shfl_xor_sync(0xffffffffu, mine.w[i], bits);
  return other.v;
}
// Of GROUP threads that follow each other, by warps and then by shared memory; all get it.
template <class R, int GROUP, class T> FN T reduce_row(T value, T* shared) {
#pragma unroll
  for (int bits = (GROUP < 32 ? GROUP : 32) / 2; bits; bits /= 2)
    value = R::of(value, exchanged(value, bits));
  if (GROUP > 32) {
    __syncthreads();  // what was there before has been read
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    const T* mine = shared + threadIdx.x / GROUP * (GROUP / 32);  // a block may have several rows
    value = mine[0];
#pragma unroll
    for (int i = 1; i < GROUP / 32; ++i) value = R::of(value, mine[i]);
  }
  return value;
}
// Of GROUP threads that are WIDTH apart; all get it.
template <class R, int GROUP, int WIDTH, class T> FN T reduce_column(T value, T* shared) {
  __syncthreads();
  shared[threadIdx.x] = value;
#pragma unroll
  for (int half = GROUP / 2; half; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half * WIDTH)
      shared[threadIdx.x] = R::of(shared[threadIdx.x], shared[threadIdx.x + half * WIDTH]);
  }
  __syncthreads();
  return shared[threadIdx.x % WIDTH];
}
