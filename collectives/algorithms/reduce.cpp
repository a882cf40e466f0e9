#include "collectives/algorithms/reduce.hpp"

#include <string>

#include <crossrank/error.hpp>

#include "collectives/algorithms/combine.hpp"
#include "collectives/algorithms/small_float_blocks.hpp"
#include "lib/core/as_size.hpp"

namespace crossrank::algorithms {
namespace {

/// The same bodies, compiled for each instruction set.
struct Standard {
  using F16 = F16Plain;
  template <class T, ReduceOp op>
  static void plain(std::byte* out, std::byte const* const* inputs, std::size_t count, std::size_t elements) {
    reduce_plain<T, op>(out, inputs, count, elements);
  }
  template <class Format, ReduceOp op>
  static void in_f32(std::byte* out, std::byte const* const* inputs, std::size_t count, std::size_t elements) {
    reduce_in_f32<Format, op>(out, inputs, count, elements);
  }
};

#if CROSSRANK_REDUCE_X86
struct Avx2 {
  using F16 = F16Converted;
  template <class T, ReduceOp op>
  __attribute__((target("avx2,f16c"))) static void plain(std::byte* out, std::byte const* const* inputs,
                                                         std::size_t count, std::size_t elements) {
    reduce_plain<T, op>(out, inputs, count, elements);
  }
  template <class Format, ReduceOp op>
  __attribute__((target("avx2,f16c"))) static void in_f32(std::byte* out, std::byte const* const* inputs,
                                                          std::size_t count, std::size_t elements) {
    reduce_in_f32<Format, op>(out, inputs, count, elements);
  }
};

struct Avx512 {
  using F16 = F16Converted;
  template <class T, ReduceOp op>
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c"))) static void plain(
      std::byte* out, std::byte const* const* inputs, std::size_t count, std::size_t elements) {
    reduce_plain<T, op>(out, inputs, count, elements);
  }
  template <class Format, ReduceOp op>
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c"))) static void in_f32(
      std::byte* out, std::byte const* const* inputs, std::size_t count, std::size_t elements) {
    reduce_in_f32<Format, op>(out, inputs, count, elements);
  }
};
#endif

template <class Kernel, class T>
ReduceFunction integer_function(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return &Kernel::template plain<T, ReduceOp::sum>;
    case ReduceOp::prod: return &Kernel::template plain<T, ReduceOp::prod>;
    case ReduceOp::min: return &Kernel::template plain<T, ReduceOp::min>;
    case ReduceOp::max: return &Kernel::template plain<T, ReduceOp::max>;
    case ReduceOp::band: return &Kernel::template plain<T, ReduceOp::band>;
    case ReduceOp::bor: return &Kernel::template plain<T, ReduceOp::bor>;
    case ReduceOp::bxor: return &Kernel::template plain<T, ReduceOp::bxor>;
    default: return nullptr;
  }
}

template <class Kernel, class T>
ReduceFunction float_function(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return &Kernel::template plain<T, ReduceOp::sum>;
    case ReduceOp::prod: return &Kernel::template plain<T, ReduceOp::prod>;
    case ReduceOp::avg: return &Kernel::template plain<T, ReduceOp::avg>;
    default: break;
  }
  if constexpr (!is_complex<T>) {
    if (op == ReduceOp::min) return &Kernel::template plain<T, ReduceOp::min>;
    if (op == ReduceOp::max) return &Kernel::template plain<T, ReduceOp::max>;
  }
  return nullptr;
}

template <class Kernel, class Format>
ReduceFunction f32_function(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return &Kernel::template in_f32<Format, ReduceOp::sum>;
    case ReduceOp::prod: return &Kernel::template in_f32<Format, ReduceOp::prod>;
    case ReduceOp::min: return &Kernel::template in_f32<Format, ReduceOp::min>;
    case ReduceOp::max: return &Kernel::template in_f32<Format, ReduceOp::max>;
    case ReduceOp::avg: return &Kernel::template in_f32<Format, ReduceOp::avg>;
    default: return nullptr;
  }
}

template <class Kernel>
ReduceFunction function_for(Dtype dtype, ReduceOp op) {
  switch (dtype) {
    case Dtype::u8: return integer_function<Kernel, std::uint8_t>(op);
    case Dtype::i8: return integer_function<Kernel, std::int8_t>(op);
    case Dtype::u16: return integer_function<Kernel, std::uint16_t>(op);
    case Dtype::i16: return integer_function<Kernel, std::int16_t>(op);
    case Dtype::u32: return integer_function<Kernel, std::uint32_t>(op);
    case Dtype::i32: return integer_function<Kernel, std::int32_t>(op);
    case Dtype::u64: return integer_function<Kernel, std::uint64_t>(op);
    case Dtype::i64: return integer_function<Kernel, std::int64_t>(op);
    case Dtype::f32: return float_function<Kernel, float>(op);
    case Dtype::f64: return float_function<Kernel, double>(op);
    // GCC 12 fuses the product of complex numbers where the processor can, whatever it is told.
    case Dtype::c64: return float_function<Standard, Complex>(op);
    case Dtype::bf16: return f32_function<Kernel, Bf16>(op);
    case Dtype::f16: return f32_function<Kernel, typename Kernel::F16>(op);
    // A table has no wider form.
    case Dtype::f8_e4m3: return f32_function<Standard, ByTable<Dtype::f8_e4m3, 1>>(op);
    case Dtype::f8_e5m2: return f32_function<Standard, ByTable<Dtype::f8_e5m2, 1>>(op);
    case Dtype::f8_e4m3fnuz: return f32_function<Standard, ByTable<Dtype::f8_e4m3fnuz, 1>>(op);
    case Dtype::f8_e5m2fnuz: return f32_function<Standard, ByTable<Dtype::f8_e5m2fnuz, 1>>(op);
    default: return nullptr;
  }
}

char const* name_of_op(ReduceOp op) {
  static constexpr char const* names[] = {"sum", "prod", "min", "max", "avg", "band", "bor", "bxor"};
  auto const number = as_index(op);
  return number < std::size(names) ? names[number] : "no op";
}

[[noreturn]] void refuse(spi::Reduction reduction, char const* operation) {
  throw UsageError({.operation = operation,
                    .message = "this dtype does not support this op",
                    .expected = "I8 to U64 with sum, prod, min, max, band, bor, bxor; F16, BF16, F32, F64, F8_E4M3, "
                                "F8_E5M2, F8_E4M3FNUZ, F8_E5M2FNUZ with sum, prod, min, max, avg; C64 with sum, prod, "
                                "avg",
                    .got = std::string(name_of(reduction.dtype)) + " with " + name_of_op(reduction.op)});
}

}  // namespace

std::string_view to_string(ReduceKernel kernel) noexcept {
  switch (kernel) {
    case ReduceKernel::standard: return "standard";
    case ReduceKernel::avx2: return "avx2";
    case ReduceKernel::avx512: return "avx512";
  }
  return "unknown";
}

bool has_kernel(ReduceKernel kernel) noexcept {
  if (kernel == ReduceKernel::standard) return true;
#if CROSSRANK_REDUCE_X86
  bool const avx2 = __builtin_cpu_supports("avx2") != 0;  // none without F16C was ever built
  if (kernel == ReduceKernel::avx2) return avx2;
  return avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
#else
  return false;
#endif
}

ReduceKernel best_reduce_kernel() noexcept {
  static ReduceKernel const best = [] {
    if (has_kernel(ReduceKernel::avx512)) return ReduceKernel::avx512;
    return has_kernel(ReduceKernel::avx2) ? ReduceKernel::avx2 : ReduceKernel::standard;
  }();
  return best;
}

Reducer reducer_with(ReduceKernel kernel, spi::Reduction reduction, char const* operation) {
  ReduceFunction function = nullptr;
#if CROSSRANK_REDUCE_X86
  if (kernel == ReduceKernel::avx2) function = function_for<Avx2>(reduction.dtype, reduction.op);
  if (kernel == ReduceKernel::avx512) function = function_for<Avx512>(reduction.dtype, reduction.op);
#endif
  if (kernel == ReduceKernel::standard) function = function_for<Standard>(reduction.dtype, reduction.op);
  if (function == nullptr) refuse(reduction, operation);
  return {function, bits_of(reduction.dtype) / 8};
}

Reducer reducer(spi::Reduction reduction, char const* operation) {
  return reducer_with(best_reduce_kernel(), reduction, operation);
}

}  // namespace crossrank::algorithms
