#include "lib/tensor/dlpack/dlpack_strides.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include <crossrank/spi/device_provider.hpp>

#include "lib/core/as_size.hpp"
#include "lib/tensor/device_tensor.hpp"

namespace crossrank {
namespace {

/// The copy as rows: `rows` runs at equal distances, for each index of the outer dimensions.
struct Rows {
  int outer = 0;                ///< number of outer dimensions
  std::int64_t rows = 1;        ///< length of the dimension below them
  std::int64_t row_stride = 0;  ///< bytes from one row to the next; may be 0 or negative
  std::int64_t run_bytes = 0;   ///< length of a row without a gap
};

Rows rows_of(dlpack::Tensor const& tensor, std::int64_t element_bytes) {
  Rows rows{.outer = tensor.ndim, .run_bytes = element_bytes};
  std::int64_t run = 1;
  auto const joins = [&](int dim) { return tensor.shape[dim] == 1 || tensor.strides[dim] == run; };
  while (rows.outer > 0 && joins(rows.outer - 1)) run *= tensor.shape[--rows.outer];
  rows.run_bytes *= run;
  if (rows.outer > 0) {
    --rows.outer;
    rows.rows = tensor.shape[rows.outer];
    rows.row_stride = tensor.strides[rows.outer] * element_bytes;
  }
  return rows;
}

/// Copies the rows of one index of the outer dimensions.
class RowCopier {
 public:
  RowCopier(Tensor const& to, Rows const& rows) : to_(to), rows_(rows), next_(to.data()) {}

  void copy(std::byte const* from) {
    // A pitch must not be less than the length of a row.
    if (on_gpu(to_) && rows_.row_stride >= rows_.run_bytes) return enqueue(from, rows_.rows);
    for (std::int64_t row = 0; row < rows_.rows; ++row, from += rows_.row_stride) {
      if (on_gpu(to_)) {
        enqueue(from, 1);
      } else {
        std::memcpy(next_, from, as_size(rows_.run_bytes));
        next_ += rows_.run_bytes;
      }
    }
  }

 private:
  void enqueue(std::byte const* from, std::int64_t rows) {
    auto const run = as_size(rows_.run_bytes);
    auto const count = as_size(rows);
    spi::device_provider(to_.device().kind)
        .copy(current_stream(to_.device()), {.to = next_,
                                             .to_device = to_.device(),
                                             .from = from,
                                             .from_device = to_.device(),
                                             .run_bytes = run,
                                             .runs = count,
                                             .to_stride = run,
                                             .from_stride = rows > 1 ? as_size(rows_.row_stride) : run});
    next_ += run * count;
  }

  Tensor const& to_;
  Rows rows_;
  std::byte* next_;
};

/// Returns the copy as one of a kernel, in the largest units that the addresses and strides allow.
spi::DevicePacking packing_of(Tensor const& to, dlpack::Tensor const& from, Rows const& rows,
                              std::byte const* element) {
  auto const element_bytes = static_cast<std::int64_t>(bits_of(to.dtype()) / 8);
  constexpr std::uintptr_t largest_unit = 8;
  auto all = largest_unit | reinterpret_cast<std::uintptr_t>(to.data()) | reinterpret_cast<std::uintptr_t>(element) |
             static_cast<std::uintptr_t>(rows.run_bytes);
  spi::DevicePacking packing{.to = to.data(), .from = element};
  auto const add = [&](std::int64_t length, std::int64_t stride) {
    packing.lengths[packing.dims] = static_cast<std::uint64_t>(length);
    packing.strides[packing.dims++] = stride;
    all |= static_cast<std::uintptr_t>(stride);
  };
  for (int i = 0; i < rows.outer; ++i) {
    if (from.shape[i] > 1) add(from.shape[i], from.strides[i] * element_bytes);
  }
  if (rows.rows > 1) add(rows.rows, rows.row_stride);
  packing.unit_bytes = 1U << std::countr_zero(all);
  add(rows.run_bytes / packing.unit_bytes, packing.unit_bytes);
  packing.units = to.nbytes() / packing.unit_bytes;
  return packing;
}

/// Copies by a kernel where the driver has no single copy for it. Returns false where the GPU has no kernels.
bool pack_on_gpu(Tensor const& to, dlpack::Tensor const& from, Rows const& rows, std::byte const* element) {
  auto& provider = spi::device_provider(to.device().kind);
  if (!provider.has_kernels(to.device())) return false;
  provider.pack(current_stream(to.device()), packing_of(to, from, rows, element));
  return true;
}

}  // namespace

bool is_dense(dlpack::Tensor const& tensor) noexcept {
  if (tensor.strides == nullptr) return true;
  if (std::count(tensor.shape, tensor.shape + tensor.ndim, 0) > 0) return true;  // no elements
  std::int64_t expected = 1;
  for (int i = tensor.ndim; i-- > 0;) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

std::optional<ReachedElements> reached_elements(dlpack::Tensor const& tensor) noexcept {
  ReachedElements range;
  for (int i = 0; i < tensor.ndim; ++i) {
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(tensor.shape[i] - 1, tensor.strides[i], &reach)) return std::nullopt;
    auto& end = reach < 0 ? range.first : range.last;
    if (__builtin_add_overflow(end, reach, &end)) return std::nullopt;
  }
  return range;
}

void copy_strided(Tensor const& to, dlpack::Tensor const& from, std::byte const* element) {
  auto const element_bytes = static_cast<std::int64_t>(bits_of(to.dtype()) / 8);
  auto const rows = rows_of(from, element_bytes);
  RowCopier copier(to, rows);
  std::array<std::int64_t, Shape::max_rank> at{};
  std::int64_t left = 1;
  for (int i = 0; i < rows.outer; ++i) left *= from.shape[i];
  bool const is_one_copy = left == 1 && (rows.rows == 1 || rows.row_stride >= rows.run_bytes);
  if (on_gpu(to) && !is_one_copy && pack_on_gpu(to, from, rows, element)) return;
  for (; left > 0; --left) {
    std::int64_t offset = 0;
    for (int i = 0; i < rows.outer; ++i) offset += at_axis(at, i) * from.strides[i];
    copier.copy(element + offset * element_bytes);
    for (int i = rows.outer; i-- > 0 && ++at_axis(at, i) == from.shape[i];) at_axis(at, i) = 0;
  }
}

}  // namespace crossrank
