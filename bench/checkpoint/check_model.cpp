// Compares every tensor of a checkpoint with the checksums that bench_make_shards wrote.
// Usage: bench_check_model CHECKPOINT EXPECTED_JSON
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/harness/run_main.hpp"
#include "lib/codec/checksum/checksum.hpp"
#include "workspace/checkpoint/discovery/open_shard_set.hpp"

namespace bench = crossrank::bench;
namespace codec = crossrank::codec;
namespace checkpoint = crossrank::checkpoint;
using crossrank::Json;

namespace {

int check(std::string const& path, std::string const& expected_file) {
  Json expected;
  std::ifstream(expected_file) >> expected;
  auto const& tensors = expected.at("tensors");
  // Skip the CRCs of archives that torch wrote; this program checks content only.
  auto const set = checkpoint::open_shard_set(path, {.crc = codec::CrcPolicy::ignore});
  if (set.sources.size() != 1) throw std::runtime_error(path + " is not a single checkpoint");
  auto const& source = *set.sources.front();
  if (source.tensors().size() != tensors.size())
    throw std::runtime_error(path + ": " + std::to_string(source.tensors().size()) + " tensors, expected " +
                             std::to_string(tensors.size()));
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < source.tensors().size(); ++i) {
    auto const& tensor = source.tensors()[i];
    bytes.resize(static_cast<std::size_t>(dense_bytes(tensor.shape, tensor.dtype)));
    source.read(i, 0, bytes);
    auto const found = tensors.find(tensor.name);
    if (found == tensors.end()) throw std::runtime_error(path + ": unexpected tensor " + tensor.name);
    if (*found != codec::to_hex(codec::checksum(bytes)))
      throw std::runtime_error(path + ": " + tensor.name + " differs from the merge of its shards");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_main(argc, argv, "CHECKPOINT EXPECTED_JSON",
                         [](char** arguments) { return check(arguments[1], arguments[2]); });
}
