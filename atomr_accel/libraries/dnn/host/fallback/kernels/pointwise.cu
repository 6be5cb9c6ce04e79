// Pointwise operations: node<Op, A, R, Y, T...>, for any layout, types and broadcasts.
//
// It reads inputs of types T, computes Op of them in the arithmetic type A, makes an R of it and
// writes a Y. R is A but for operations on integers, where it is what their result is stored as.
// An operation is a struct below, named as in graphs: "cmp_eq" is CmpEq.
//
// Launched with one thread for each element of the result, or with fewer, which take several in
// turn. DIMS and INPUTS, the most dimensions and inputs, come from Python, which packs a Node.

#include "access.cuh"
#include "types.cuh"

// An input without a pointer is the number itself.
struct Input { const void* data; double number; i64 strides[DIMS]; };
// What operations have besides inputs; "high" is NaN where nothing is clipped.
struct Attributes { double beta, low, high, slope; };
struct Node {
  void* out;
  i64 count, ndim;
  i64 shape[DIMS];
  i64 strides[DIMS];
  Input in[INPUTS];
  Attributes attributes;
};

// --- operations ------------------------------------------------------------------------

// Not further from zero than that, where a function has come to its limit long ago; NaN stays.
template <class A> __device__ A within(A a, A most) {
  return a > most ? most : a < -most ? -most : a;
}
// The product, but 0 where s is: a may be infinite there.
template <class A> __device__ A vanishing(A a, A s) { return s == (A)0 ? s : a * s; }
template <class A> __device__ A at_most(A a, A most) { return a > most ? most : a; }
template <class A> __device__ A at_least(A a, A least) { return a < least ? least : a; }

template <class A> __device__ A absolute(A a) { return a < (A)0 ? -a : a; }
__device__ u64 absolute(u64 a) { return a; }
__device__ float absolute(float a) { return fabs(a); }
__device__ double absolute(double a) { return fabs(a); }

template <class A> __device__ A sigmoid(A a) { return (A)1 / ((A)1 + exp(-a)); }
// Beyond, the sigmoid is 0 or 1 in every type. Nothing is multiplied by 0, because infinity times
// 0 is NaN.
template <class A> __device__ A gate(A a, const Attributes& with) {
  return within<A>(with.beta != 0 ? (A)with.beta * a : a != a ? a : (A)0, (A)2048);
}

// Beyond, GELU is 0 or a in every type.
template <class A> __device__ A near(A a) { return within<A>(a, (A)64); }
// Twice the normal distribution function; 1 + erf would lose its digits below zero.
template <class A> __device__ A normal(A a) { return erfc(-near(a) * (A)0.70710678118654752440); }
// The square root of 2 / pi, and what GELU's approximation has for 2 * normal - 1.
#define SLOPE (A)0.79788456080286535588
#define CUBIC (A)0.044715
template <class A> __device__ A bent(A a) {
  const A x = near(a);
  return tanh(SLOPE * (x + CUBIC * x * x * x));
}

// A gradient where the function is flat: an infinite one does not pass, NaN does.
template <class A> __device__ A flat(A loss) { return loss != loss ? loss : (A)0; }

#define OPERATION(Name, inputs, ...)                                         \
  struct Name {                                                              \
    template <class A> __device__ static A of inputs { return __VA_ARGS__; } \
  };
#define UNARY(Name, ...) OPERATION(Name, (const Attributes&, A a), __VA_ARGS__)
#define BINARY(Name, ...) OPERATION(Name, (const Attributes&, A a, A b), __VA_ARGS__)
#define GRADIENT(Name, ...) OPERATION(Name, (const Attributes&, A loss, A a), __VA_ARGS__)

UNARY(Identity, a)
UNARY(Abs, absolute(a))
UNARY(Neg, -a)
UNARY(Ceil, ceil(a))
UNARY(Floor, floor(a))
UNARY(Reciprocal, (A)1 / a)
UNARY(Sqrt, sqrt(a))
UNARY(Rsqrt, (A)1 / sqrt(a))
UNARY(Exp, exp(a))
UNARY(Log, log(a))
UNARY(Erf, erf(a))
UNARY(Sin, sin(a))
UNARY(Cos, cos(a))
UNARY(Tan, tan(a))
UNARY(LogicalNot, a == (A)0)

BINARY(Add, a + b)
BINARY(AddSquare, a + b * b)
BINARY(Sub, a - b)
BINARY(Mul, a * b)
BINARY(Div, a / b)
BINARY(Mod, fmod(a, b))
BINARY(Pow, pow(a, b))
BINARY(Max, a != a ? a : b != b ? b : a > b ? a : b)
BINARY(Min, a != a ? a : b != b ? b : a < b ? a : b)
BINARY(CmpEq, a == b)
BINARY(CmpNeq, a != b)
BINARY(CmpGe, a >= b)
BINARY(CmpGt, a > b)
BINARY(CmpLe, a <= b)
BINARY(CmpLt, a < b)
BINARY(LogicalAnd, a != (A)0 && b != (A)0)
BINARY(LogicalOr, a != (A)0 || b != (A)0)

UNARY(Sigmoid, sigmoid(a))
GRADIENT(SigmoidBackward, loss * sigmoid(a) * ((A)1 - sigmoid(a)))
UNARY(Tanh, tanh(a))
GRADIENT(TanhBackward, loss * ((A)1 - tanh(a) * tanh(a)))
UNARY(Elu, a > (A)0 ? a : expm1(a))
GRADIENT(EluBackward, loss * (a > (A)0 ? (A)1 : exp(a)))
UNARY(Softplus, log1p(exp(-absolute(a))) + (a > (A)0 ? a : (A)0))
GRADIENT(SoftplusBackward, loss * sigmoid(a))
UNARY(Gelu, at_least<A>(a, (A)-64) * (A)0.5 * normal(a))
GRADIENT(GeluBackward, loss * ((A)0.5 * normal(a) + near(a) * (A)0.39894228040143267794 *
                                                        exp((A)-0.5 * near(a) * near(a))))
UNARY(GeluApproxTanh, (A)0.5 * at_least<A>(a, (A)-64) * ((A)1 + bent(a)))
GRADIENT(GeluApproxTanhBackward,
         loss * ((A)0.5 * ((A)1 + bent(a)) + (A)0.5 * near(a) * ((A)1 - bent(a) * bent(a)) *
                                                 SLOPE * ((A)1 + (A)3 * CUBIC * near(a) * near(a))))

OPERATION(Swish, (const Attributes& with, A a), vanishing<A>(a, sigmoid(gate(a, with))))
OPERATION(SwishBackward, (const Attributes& with, A loss, A a),
          loss * (sigmoid(gate(a, with)) *
                  ((A)1 + gate(a, with) * ((A)1 - sigmoid(gate(a, with))))))

// Here, too, nothing is multiplied by 0.
struct Relu {
  template <class A> __device__ static A of(const Attributes& with, A a) {
    const A low = (A)with.low;
    const A below = with.slope != 0 ? low + (A)with.slope * (a - low) : a != a ? a : low;
    return at_most<A>(a > low ? a : below, (A)with.high);
  }
};
struct ReluBackward {
  template <class A> __device__ static A of(const Attributes& with, A loss, A a) {
    if (a != a) return a;
    if (a >= (A)with.high) return flat(loss);
    if (a > (A)with.low) return loss;
    return with.slope != 0 ? (A)with.slope * loss : flat(loss);
  }
};

OPERATION(BinarySelect, (const Attributes&, A a, A b, A mask), mask != (A)0 ? a : b)
OPERATION(BatchnormInference, (const Attributes&, A a, A mean, A inverse, A scale, A bias),
          (a - mean) * inverse * scale + bias)
// Its input has no pointer, and moves along the axis that is counted.
struct GenIndex {};

// --- the kernel ------------------------------------------------------------------------

template <class A> __device__ A converted(double number) { return (A)number; }
// Of a negative number a conversion to unsigned integers makes 0, so it goes by signed ones.
template <> __device__ unsigned long long converted(double number) { return (i64)number; }

template <class A, class T> __device__ A load(const Input& input, i64 at) {
  return input.data ? get<A>(((const T*)input.data)[at]) : converted<A>(input.number);
}

// The numbers from 0 to Count - 1, as template arguments.
template <int... N> struct Numbers {};
template <int Count, int... N> struct Upto : Upto<Count - 1, Count - 1, N...> {};
template <int... N> struct Upto<0, N...> { typedef Numbers<N...> type; };

template <class Op, class A> struct Result {
  template <class... T, int... N>
  __device__ static A of(const Node& node, const i64* at, Numbers<N...>) {
    return Op::template of<A>(node.attributes, load<A, T>(node.in[N], at[N])...);
  }
};
template <class A> struct Result<GenIndex, A> {
  template <class T> __device__ static A of(const Node&, const i64* at, Numbers<0>) {
    return (A)at[0];
  }
};

template <class Op, class A, class R, class Y, class... T>
__global__ void node(Node node) {
  const i64 step = (i64)gridDim.x * blockDim.x;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < node.count; i += step) {
    i64 rest = i, out = 0, at[INPUTS] = {};
    for (i64 d = node.ndim - 1; d >= 0; --d) {
      const i64 before = d ? rest / node.shape[d] : 0;
      const i64 index = rest - before * node.shape[d];
      rest = before;
      out += index * node.strides[d];
      for (int n = 0; n < (int)sizeof...(T); ++n) at[n] += index * node.in[n].strides[d];
    }
    typedef typename Upto<sizeof...(T)>::type Each;
    put(((Y*)node.out)[out], (R)Result<Op, A>::template of<T...>(node, at, Each()));
  }
}
