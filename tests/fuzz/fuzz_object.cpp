#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <crossrank/error.hpp>
#include <crossrank/serialize.hpp>

namespace {

struct Tree {
  std::vector<Tree> children{};
  template <class Archive>
  void serialize(Archive& archive) {
    archive(children);
  }
};

struct Sample {
  std::string name{};
  std::vector<std::int32_t> numbers{};
  std::map<std::string, std::vector<std::string>> map{};
  std::optional<double> maybe{};
  crossrank::Json json{};
  Tree tree{};
  template <class Archive>
  void serialize(Archive& archive) {
    archive(name, numbers, map, maybe, json, tree);
  }
};

}  // namespace

template <>
inline constexpr crossrank::TypeTag crossrank::type_tag<Sample>{"sample", 1};

/// Reads any bytes as an object of a peer. They are refused with a `FormatError`, or the object can be encoded and read
/// again.
extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace crossrank;
  auto const bytes = std::as_bytes(std::span(data, size));
  try {
    auto const sample = decode_object<Sample>(bytes);
    auto const again = encode_object(decode_object<Sample>(encode_object(sample)));
    if (again != encode_object(sample)) __builtin_trap();
  } catch (FormatError const& e) {
    if (e.section().empty()) __builtin_trap();
  }
  return 0;
}
