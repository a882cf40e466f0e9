// The part of a PTX text that the emulated driver checks. The code in it is not run.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace emulated {

struct Ptx {
  int target = 0;                                           // compute capability times ten
  std::map<std::string, std::vector<std::size_t>> entries;  // size of each parameter, by the name of the kernel
};

/// Reads a text; a number or name that is missing is 0 or empty.
Ptx read_ptx(std::string_view text);

}  // namespace emulated
