#include "checkpoint.hpp"

#include <algorithm>

#include <crossrank/safetensors.hpp>

namespace tp_export {
namespace {

namespace fs = std::filesystem;

bool is_same(xr::Tensor const& a, xr::Tensor const& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() && std::ranges::equal(a.bytes(), b.bytes());
}

}  // namespace

std::set<fs::path> write_checkpoint(fs::path const& directory, xr::StateDict const& weights,
                                    SourceModel const& source) {
  fs::create_directories(directory);
  std::set<fs::path> written{directory, directory / "model.safetensors"};
  xr::save_safetensors(directory / "model.safetensors", weights);
  for (char const* name : {"config.json", "generation_config.json", "special_tokens_map.json", "tokenizer.json",
                           "tokenizer.model", "tokenizer_config.json"}) {
    if (!fs::exists(source.directory() / name)) continue;
    fs::copy_file(source.directory() / name, directory / name, fs::copy_options::overwrite_existing);
    fs::permissions(directory / name, fs::perms::owner_write, fs::perm_options::add);  // the source may be read-only
    written.insert(directory / name);
  }
  return written;
}

std::string compare(xr::StateDict const& weights, SourceModel const& source, LlamaSharding const& plan,
                    xr::Collective const& world) {
  std::size_t expected = 0;
  for (auto const& entry : source.entries()) {
    world.keep_alive();
    bool const is_dropped = plan.placement_of(entry.name) == Placement::dropped;
    auto const* const merged = weights.find(is_dropped ? "model.embed_tokens.weight" : entry.name);
    if (merged == nullptr) return entry.name + " is missing";
    if (!is_same(*merged, source.read(entry.name))) return entry.name + " differs from the source";
    if (!is_dropped) ++expected;
  }
  if (weights.size() == expected) return {};
  return std::to_string(weights.size()) + " tensors instead of " + std::to_string(expected);
}

}  // namespace tp_export
