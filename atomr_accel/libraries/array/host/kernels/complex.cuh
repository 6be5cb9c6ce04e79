// Functions of complex numbers, with the special values of C's (annex G), as NumPy has them.
//
// What is made of inverse functions is W. Kahan's, "Branch cuts for complex elementary functions",
// which needs no more digits than it is given.
#pragma once

#define C complex_of<T>
template <class T> FN T f_real(C a) { return a.re; }
template <class T> FN T f_imag(C a) { return a.im; }
template <class T> FN C f_conjugate(C a) { return C{a.re, -a.im}; }
template <class T> FN C f_negative(C a) { return C{-a.re, -a.im}; }
template <class T> FN C f_add(C a, C b) { return C{a.re + b.re, a.im + b.im}; }
template <class T> FN C f_subtract(C a, C b) { return C{a.re - b.re, a.im - b.im}; }
template <class T>
FN C f_multiply(C a, C b) {
  return C{a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
template <class T>
FN C f_square(C a) {
  return C{a.re * a.re - a.im * a.im, a.re * a.im + a.im * a.re};
}
template <class T> FN C f_divide(C a, C b) {  // scaled by the larger part
  if (f_absolute(b.re) >= f_absolute(b.im)) {
    if (b.re == 0 && b.im == 0) return C{a.re / f_absolute(b.re), a.im / f_absolute(b.re)};
    const T r = b.im / b.re, s = (T)1 / (b.re + b.im * r);
    return C{(a.re + a.im * r) * s, (a.im - a.re * r) * s};
  }
  const T r = b.re / b.im, s = (T)1 / (b.im + b.re * r);
  return C{(a.re * r + a.im) * s, (a.im * r - a.re) * s};
}
template <class T> FN C f_reciprocal(C a) { return f_divide(C{1, 0}, a); }
template <class T> FN T f_absolute(C a) { return f_hypot(a.re, a.im); }
template <class T> FN bool f_isinf(C a) { return f_isinf(a.re) || f_isinf(a.im); }
template <class T> FN bool f_isfinite(C a) { return f_isfinite(a.re) && f_isfinite(a.im); }
template <class T> FN C f_sign(C a) {
  const T size = f_absolute(a);
  return size == 0 ? C{0, 0} : C{a.re / size, a.im / size};
}
template <class T> FN C f_log(C a) {
  const T angle = f_arctan2(a.im, a.re), size = f_absolute(a);
  if (!(size > (T)0.5 && size < 2)) return C{f_log(size), angle};
  const T x = f_absolute(a.re), y = f_absolute(a.im), more = x > y ? x : y, less = x > y ? y : x;
  return C{f_log1p((more - 1) * (more + 1) + less * less) / 2, angle};  // what is small stays exact
}
template <class T> FN C times(C a, T b) { return C{a.re * b, a.im * b}; }
template <class T> FN C f_exp2(C a) { return f_exp(times(a, (T)0.693147180559945309417)); }
template <class T> FN C f_log2(C a) { return times(f_log(a), (T)1.44269504088896340736); }
template <class T> FN C f_log10(C a) { return times(f_log(a), (T)0.43429448190325182765); }
template <class T>
FN C f_log1p(C a) {
  return C{f_log(f_hypot(a.re + 1, a.im)), f_arctan2(a.im, a.re + 1)};
}
template <class T> FN C f_expm1(C a) {
  const T s = f_sin(a.im / 2);
  return C{f_expm1(a.re) * f_cos(a.im) - 2 * s * s, f_exp(a.re) * f_sin(a.im)};
}

template <class T> FN T infinity() { return (T)__uint_as_float(0x7f800000u); }
template <class T> FN T not_a_number() { return (T)__uint_as_float(0x7fc00000u); }
template <class T> FN T quarters(int count) {  // of pi
  return (T)(0.78539816339744830962 * count);
}
template <class T> FN C by_i(C a) { return C{-a.im, a.re}; }
template <class T> FN C by_minus_i(C a) { return C{a.im, -a.re}; }

// Where e to some power is too large, by its root twice.
template <class T> FN C f_exp(C a) {
  if (a.im == 0) return C{f_exp(a.re), a.im};
  if (!f_isfinite(a.im) && f_isinf(a.re))
    return a.re < 0 ? C{0, f_copysign((T)0, a.im)} : C{a.re, not_a_number<T>()};
  const T size = f_exp(a.re), cosine = f_cos(a.im), sine = f_sin(a.im);
  if (f_isinf(size) && f_isfinite(a.re)) {
    const T root = f_exp(a.re / 2);
    return C{root * cosine * root, root * sine * root};
  }
  return C{size * cosine, size * sine};
}
template <class T> FN C f_sinh(C a) {
  if (a.im == 0) return C{f_sinh(a.re), a.im};
  if (a.re == 0) return C{f_isfinite(a.im) ? a.re * f_cos(a.im) : a.re, f_sin(a.im)};
  if (f_isinf(a.re) && !f_isfinite(a.im)) return C{infinity<T>(), not_a_number<T>()};
  const T s = f_sinh(a.re), c = f_cosh(a.re), sine = f_sin(a.im), cosine = f_cos(a.im);
  if (f_isinf(c) && f_isfinite(a.re)) {
    const T root = f_exp(f_absolute(a.re) / 2);
    return C{f_copysign((T)0.5, a.re) * root * cosine * root, (T)0.5 * root * sine * root};
  }
  return C{s * cosine, c * sine};
}
template <class T> FN C f_cosh(C a) {
  if (a.im == 0) return C{f_cosh(a.re), a.re == a.re ? f_copysign((T)1, a.re) * a.im : a.im};
  if (a.re == 0) return C{f_cos(a.im), f_isfinite(a.im) ? a.re * f_sin(a.im) : 0};
  if (f_isinf(a.re) && !f_isfinite(a.im)) return C{infinity<T>(), not_a_number<T>()};
  const T s = f_sinh(a.re), c = f_cosh(a.re), sine = f_sin(a.im), cosine = f_cos(a.im);
  if (f_isinf(c) && f_isfinite(a.re)) {
    const T root = f_exp(f_absolute(a.re) / 2);
    return C{(T)0.5 * root * cosine * root, f_copysign((T)0.5, a.re) * root * sine * root};
  }
  return C{c * cosine, s * sine};
}
template <class T> FN C f_tanh(C a) {
  if (f_isinf(a.re))
    return C{f_copysign((T)1, a.re), f_isfinite(a.im) ? f_copysign((T)0, f_sin(a.im + a.im))
                                                      : f_copysign((T)0, a.im)};
  if (a.re != a.re) return C{a.re, a.im == 0 ? a.im : not_a_number<T>()};
  if (!f_isfinite(a.im)) return C{a.re == 0 ? a.re : not_a_number<T>(), not_a_number<T>()};
  if (f_absolute(a.re) > (T)22) {
    const T small = f_exp(-f_absolute(a.re));
    return C{f_copysign((T)1, a.re), 4 * f_sin(a.im) * f_cos(a.im) * small * small};
  }
  const T t = f_tan(a.im), s = f_sinh(a.re), rho = f_sqrt(1 + s * s);
  if (f_isinf(t)) return C{rho / s, 1 / t};
  const T beta = 1 + t * t, all = 1 + beta * s * s;
  return C{beta * rho * s / all, t / all};
}
template <class T> FN C f_sin(C a) { return by_minus_i(f_sinh(by_i(a))); }
template <class T> FN C f_cos(C a) { return f_cosh(by_i(a)); }
template <class T> FN C f_tan(C a) { return by_minus_i(f_tanh(by_i(a))); }
template <class T> FN C f_sqrt(C a) {
  if (a.re == 0 && a.im == 0) return C{0, a.im};
  if (f_isinf(a.im)) return C{infinity<T>(), a.im};
  if (a.re != a.re) return C{a.re, a.re};
  if (f_isinf(a.re)) {
    const T other = a.im == a.im ? f_copysign((T)0, a.im) : a.im;
    return a.re > 0 ? C{a.re, other} : C{f_absolute(other), f_copysign(a.re, a.im)};
  }
  const bool large = f_absolute(a.re) > (T)1e37 || f_absolute(a.im) > (T)1e37;
  const C b = large ? times(a, (T)0.25) : a;
  const T size = f_sqrt((f_absolute(b.re) + f_absolute(b)) * (T)0.5);
  const C root = b.re >= 0 ? C{size, b.im / (2 * size)}
                           : C{f_absolute(b.im) / (2 * size), f_copysign(size, b.im)};
  return large ? times(root, (T)2) : root;
}

// Of one and a number that is added to it, or that it is taken from: zeros keep their signs.
template <class T> FN C sum_of_1(C a) { return C{1 + a.re, a.im}; }
template <class T> FN C rest_of_1(C a) { return C{1 - a.re, -a.im}; }
template <class T> FN T real_product(C a, C b) { return a.re * b.re - a.im * b.im; }
template <class T> FN T imag_product(C a, C b) { return a.re * b.im + a.im * b.re; }

template <class T> FN C f_arccos(C a) {
  const T nan = not_a_number<T>(), up = f_copysign(infinity<T>(), -a.im);
  if (f_isinf(a.im))
    return C{a.re != a.re ? nan : quarters<T>(f_isfinite(a.re) ? 2 : a.re < 0 ? 3 : 1), up};
  if (f_isinf(a.re))
    return a.im != a.im ? C{nan, infinity<T>()} : C{a.re < 0 ? quarters<T>(4) : 0, up};
  if (a.im != a.im) return C{a.re == 0 ? quarters<T>(2) : nan, nan};
  if (a.re != a.re) return C{nan, nan};
  const C less = f_sqrt(rest_of_1(a)), more = f_sqrt(sum_of_1(a));
  return C{2 * f_arctan2(less.re, more.re), f_arcsinh(imag_product(f_conjugate(more), less))};
}
template <class T> FN C f_arccosh(C a) {
  const C w = f_arccos(a);
  if (w.re != w.re) return C{f_absolute(w.im), w.re};
  return C{f_absolute(w.im), f_copysign(w.re, a.im)};
}
template <class T> FN C f_arcsin(C a) {
  const T nan = not_a_number<T>();
  if (f_isinf(a.im)) {
    const T part = a.re != a.re ? nan : f_isinf(a.re) ? quarters<T>(1) : (T)0;
    return C{f_copysign(part, a.re), a.im};
  }
  if (f_isinf(a.re))
    return a.im != a.im ? C{nan, a.re}
                        : C{f_copysign(quarters<T>(2), a.re), f_copysign(infinity<T>(), a.im)};
  if (a.im != a.im) return C{a.re == 0 ? a.re : nan, nan};
  if (a.re != a.re) return C{nan, nan};
  const C less = f_sqrt(rest_of_1(a)), more = f_sqrt(sum_of_1(a));
  return C{f_arctan2(a.re, real_product(less, more)),
           f_arcsinh(imag_product(f_conjugate(less), more))};
}
template <class T> FN C f_arcsinh(C a) { return by_minus_i(f_arcsin(by_i(a))); }
template <class T> FN C f_arctanh(C a) {
  const T nan = not_a_number<T>(), up = f_copysign(quarters<T>(2), a.im);
  if (f_isinf(a.im)) return C{f_copysign((T)0, a.re), up};
  if (f_isinf(a.re)) return C{f_copysign((T)0, a.re), a.im != a.im ? nan : up};
  if (a.im != a.im) return C{a.re == 0 ? a.re : nan, nan};
  if (a.re != a.re) return C{nan, nan};
  const T x = f_absolute(a.re), y = f_absolute(a.im);
  if (y == 0 && x <= 1) return C{f_arctanh(a.re), a.im};
  if (x > (T)1e16 || y > (T)1e16) {  // 1 / a, without a square that is too large
    const T size = f_hypot(x, y);
    return C{a.re / size / size, up};
  }
  T real;
  if (x == 1) {
    real = f_log(f_sqrt(f_hypot(y, (T)2)) / f_sqrt(y));
  } else {
    real = f_log1p(4 * x / ((1 - x) * (1 - x) + y * y)) / 4;
  }
  const T angle = f_arctan2(2 * y, (1 - x) * (1 + x) - y * y) / 2;
  return C{f_copysign(real, a.re), f_copysign(angle, a.im)};
}
template <class T> FN C f_arctan(C a) { return by_minus_i(f_arctanh(by_i(a))); }

template <class T> FN C f_power(C a, C b) {
  if (b.re == 0 && b.im == 0) return C{1, 0};
  if (a.re == 0 && a.im == 0) return b.re > 0 && b.im == 0 ? C{0, 0} : C{a.re / a.re, a.re / a.re};
  if (b.im == 0 && b.re == f_trunc(b.re) && f_absolute(b.re) < 100) {  // by products, as NumPy
    int left = (int)f_absolute(b.re);
    C result = C{1, 0}, base = a;
    for (; left; left >>= 1) {
      if (left & 1) result = f_multiply(result, base);
      base = f_multiply(base, base);
    }
    return b.re < 0 ? f_divide(C{1, 0}, result) : result;
  }
  return f_exp(f_multiply(b, f_log(a)));
}
#undef C
