#include "workspace/checkpoint/quantization/reduce_values.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>

#include <crossrank/error.hpp>

#include "lib/tensor/small_float.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"

namespace crossrank::checkpoint {
namespace {

template <class T>
T load(std::byte const* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
T combine(ReduceOp op, std::span<std::vector<std::byte> const> values, std::size_t at) {
  T result = load<T>(values[0].data() + at);
  double sum = static_cast<double>(result);
  for (std::size_t i = 1; i < values.size(); ++i) {
    T const value = load<T>(values[i].data() + at);
    sum += static_cast<double>(value);
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(value)) result = value;
      if (std::isnan(result)) continue;
    }
    result = op == ReduceOp::min ? std::min(result, value) : std::max(result, value);
  }
  return op == ReduceOp::avg ? static_cast<T>(sum / static_cast<double>(values.size())) : result;
}

template <class T>
void combine_all(ReduceOp op, std::span<std::vector<std::byte> const> values, std::span<std::byte> out) {
  for (std::size_t at = 0; at + sizeof(T) <= out.size(); at += sizeof(T)) {
    T const value = combine<T>(op, values, at);
    std::memcpy(out.data() + at, &value, sizeof value);
  }
}

void combine_small(Dtype dtype, ReduceOp op, std::span<std::vector<std::byte> const> values, std::span<std::byte> out) {
  auto const count = out.size() * 8 / bits_of(dtype);
  std::vector<std::vector<std::byte>> wide;
  for (auto const& value : values) {
    std::vector<std::byte> numbers(count * sizeof(float));
    std::vector<float> decoded(count);
    decode_small_floats(dtype, value, decoded);
    std::memcpy(numbers.data(), decoded.data(), numbers.size());
    wide.push_back(std::move(numbers));
  }
  std::vector<std::byte> result(count * sizeof(float));
  combine_all<float>(op, wide, result);
  std::vector<float> numbers(count);
  std::memcpy(numbers.data(), result.data(), result.size());
  encode_small_floats(dtype, numbers, out);
}

}  // namespace

void reduce_values(Dtype dtype, ReduceOp op, std::span<std::vector<std::byte> const> values, std::span<std::byte> out) {
  bool const known = op == ReduceOp::max || op == ReduceOp::min || op == ReduceOp::avg;
  if (known && is_small_float(dtype)) return combine_small(dtype, op, values, out);
  switch (known ? dtype : Dtype::boolean) {
    case Dtype::f32: return combine_all<float>(op, values, out);
    case Dtype::f64: return combine_all<double>(op, values, out);
    case Dtype::i8: return combine_all<std::int8_t>(op, values, out);
    case Dtype::u8: return combine_all<std::uint8_t>(op, values, out);
    case Dtype::i16: return combine_all<std::int16_t>(op, values, out);
    case Dtype::u16: return combine_all<std::uint16_t>(op, values, out);
    case Dtype::i32: return combine_all<std::int32_t>(op, values, out);
    case Dtype::u32: return combine_all<std::uint32_t>(op, values, out);
    case Dtype::i64: return combine_all<std::int64_t>(op, values, out);
    case Dtype::u64: return combine_all<std::uint64_t>(op, values, out);
    default: break;
  }
  throw UsageError({.operation = "merge",
                    .message = "values of this dtype cannot be reduced this way",
                    .expected = "max, min or avg of a number dtype",
                    .got = std::string(name_of(dtype))});
}

void sum_element(Dtype dtype, std::size_t element, std::span<std::vector<std::byte> const> values, Shares const& shares,
                 std::span<std::byte> out) {
  auto const width = bits_of(dtype) / 8;
  if ((dtype != Dtype::i32 && dtype != Dtype::i64) || (element + 1) * width > out.size()) {
    throw UsageError({.operation = "merge",
                      .message = "the element cannot be summed",
                      .expected = "an existing element of I32 or I64",
                      .got = std::to_string(element) + " of " + std::string(name_of(dtype))});
  }
  auto const begin = static_cast<std::ptrdiff_t>(element * width);
  auto const end = begin + static_cast<std::ptrdiff_t>(width);
  auto const& first = values[0];
  std::int64_t sum = 0;
  for (std::size_t rank = 0; rank < values.size(); ++rank) {
    auto const& value = values[rank];
    if (!std::equal(first.begin(), first.begin() + begin, value.begin()) ||
        !std::equal(first.begin() + end, first.end(), value.begin() + end)) {
      throw FormatError({.operation = "merge",
                         .message = "the original shapes of the ranks differ in a dimension that is not sharded",
                         .expected = element_text(dtype, first, element == 0 ? 1 : 0) + " on rank 0",
                         .got = element_text(dtype, value, element == 0 ? 1 : 0) + " on rank " + std::to_string(rank),
                         .hint = "check that all files belong to one model",
                         .failed_ranks = {static_cast<int>(rank)},
                         .section = to_string(ErrorSection::shape)});
    }
    auto const* const at = value.data() + begin;
    auto const length = dtype == Dtype::i32 ? load<std::int32_t>(at) : load<std::int64_t>(at);
    sum += length / shares.whole * shares.of_rank.at(rank);
  }
  std::copy(first.begin(), first.end(), out.begin());
  // Little-endian: the low bytes come first.
  std::memcpy(out.data() + begin, &sum, width);
}

std::string element_text(Dtype dtype, std::span<std::byte const> bytes, std::size_t element) {
  auto const width = bits_of(dtype) / 8;
  char text[48];
  if (dtype == Dtype::f4 || dtype == Dtype::f6_e2m3 || dtype == Dtype::f6_e3m2 || width == 0) return "differing bits";
  auto const* const at = bytes.data() + element * width;
  if (is_small_float(dtype)) {
    std::uint16_t code = 0;
    std::memcpy(&code, at, width);
    std::snprintf(text, sizeof text, "%.9g", static_cast<double>(decode_small_float(dtype, code)));
    return text;
  }
  switch (dtype) {
    case Dtype::f32: std::snprintf(text, sizeof text, "%.9g", static_cast<double>(load<float>(at))); return text;
    case Dtype::f64: std::snprintf(text, sizeof text, "%.17g", load<double>(at)); return text;
    case Dtype::i8: return std::to_string(load<std::int8_t>(at));
    case Dtype::i16: return std::to_string(load<std::int16_t>(at));
    case Dtype::i32: return std::to_string(load<std::int32_t>(at));
    case Dtype::i64: return std::to_string(load<std::int64_t>(at));
    case Dtype::u64: return std::to_string(load<std::uint64_t>(at));
    default: break;
  }
  std::uint64_t code = 0;
  std::memcpy(&code, at, std::min<std::size_t>(width, sizeof code));
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(code));
  return text;
}

}  // namespace crossrank::checkpoint
