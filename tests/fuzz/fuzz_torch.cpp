#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/codec/torch/torch_fixture.hpp"

namespace {

/// Reads the two ends of a tensor.
void read_ends(crossrank::codec::TorchArchive const& archive, crossrank::codec::TorchTensor const& tensor) {
  std::vector<std::byte> some(static_cast<std::size_t>(std::min<std::uint64_t>(tensor.nbytes, 4096)));
  archive.read(tensor, 0, some);
  archive.read(tensor, tensor.nbytes - some.size(), some);
}

}  // namespace

/// Reads any bytes as an archive of torch. They are refused with a `FormatError` that gives the byte, or the tensors
/// can be read.
extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace crossrank;
  using namespace crossrank::codec;
  Bytes const bytes = to_bytes({reinterpret_cast<char const*>(data), size});
  for (auto const& allowlist : {torch_allowlist(), training_allowlist()}) {
    for (auto const crc : {CrcPolicy::require, CrcPolicy::ignore}) {
      try {
        auto const archive = open_torch(bytes, {.crc = crc, .allowlist = allowlist});
        auto const contents = split_contents(*archive, archive->root());
        for (std::size_t i = 0; i < std::min<std::size_t>(contents.tensors.size(), 64); ++i)
          read_ends(*archive, *contents.tensors[i].tensor);
        (void)contents.values.dump(-1, ' ', false, Json::error_handler_t::replace);
      } catch (FormatError const& e) {
        if (e.section().empty()) __builtin_trap();
        (void)e.to_json().dump();
      }
    }
  }
  return 0;
}
