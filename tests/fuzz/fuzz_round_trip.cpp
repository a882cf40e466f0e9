#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/codec/safetensors/image_fixture.hpp"

namespace {

/// Draws numbers from the input, then zeros.
class Draw {
 public:
  Draw(std::uint8_t const* data, std::size_t size) : data_(data), size_(size) {}
  std::size_t below(std::size_t bound) { return at_ < size_ ? data_[at_++] % bound : 0; }

 private:
  std::uint8_t const* data_;
  std::size_t size_;
  std::size_t at_ = 0;
};

}  // namespace

/// Builds a valid state from the input and checks that it round-trips. With one byte changed it must be refused.
extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace crossrank;
  using namespace crossrank::codec;
  Draw draw(data, size);
  StateDict weights;
  Json config = Json::object();
  for (auto left = draw.below(6); left > 0; --left) {
    std::string const name(draw.below(9), static_cast<char>('a' + draw.below(26)));
    Shape const shape{static_cast<std::int64_t>(draw.below(4)), 8};
    auto tensor = draw.below(8) == 0 ? Tensor{} : Tensor::zeros(shape, static_cast<Dtype>(draw.below(dtype_count)));
    if (tensor.nbytes() > 0) tensor.mutable_bytes()[0] = static_cast<std::byte>(draw.below(256));
    config["$" + name] = draw.below(256);
    weights.insert_or_assign(name, tensor);
  }
  auto bytes = image_of(config, weights);
  auto const back = open_bytes(bytes).read_all();
  if (back.config != config || back.weights.size() != weights.size()) __builtin_trap();
  for (auto const& [name, tensor] : weights) {
    auto const& other = back.weights.at(name);
    if (other.defined() != tensor.defined() || to_string(other) != to_string(tensor)) __builtin_trap();
    if (tensor.nbytes() > 0 && std::memcmp(other.data(), tensor.data(), tensor.nbytes()) != 0) __builtin_trap();
  }
  auto const at = (draw.below(256) * 256 + draw.below(256)) % bytes.size();
  bytes[at] ^= static_cast<std::byte>(1 + draw.below(255));
  try {
    (void)open_bytes(bytes).read_all();
    __builtin_trap();
  } catch (FormatError const&) {
    return 0;
  }
}
