#pragma once
#include <cstdint>
#include <type_traits>

#include <crossrank/spi/device_kernels.hpp>

#include "lib/device/kernels/number.hpp"

namespace crossrank::kernels {

/// Converts element number `i`: the body of the kernel. The dtypes are the same for all elements, so that the threads
/// of a GPU branch alike. One kernel with branches has a tenth of the code of one kernel for each pair of dtypes.
[[gnu::always_inline]] inline void convert_element(spi::DeviceConversion const& conversion, std::uint64_t i) {
  enum class Kind : std::uint8_t { real, integer, natural } kind{};
  double real = 0;
  std::int64_t integer = 0;
  std::uint64_t natural = 0;
  with_number(conversion.from_dtype, [&]<Dtype from>() {
    auto const number = read_number<from>(static_cast<Code<from> const*>(conversion.from)[i]);
    using Number = std::remove_const_t<decltype(number)>;
    if constexpr (std::is_same_v<Number, double>) {
      kind = Kind::real;
      real = number;
    } else if constexpr (std::is_signed_v<Number>) {
      kind = Kind::integer;
      integer = number;
    } else {
      kind = Kind::natural;
      natural = number;
    }
  });
  with_number(conversion.to_dtype, [&]<Dtype to>() {
    auto& element = static_cast<Code<to>*>(conversion.to)[i];
    switch (kind) {
      case Kind::real: element = write_number<to>(real); break;
      case Kind::integer: element = write_number<to>(integer); break;
      case Kind::natural: element = write_number<to>(natural); break;
    }
  });
}

}  // namespace crossrank::kernels
