#include "workspace/checkpoint/lone_shard.hpp"

#include <filesystem>
#include <string>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/rule_book.hpp"
#include "workspace/checkpoint/shard_names.hpp"

namespace crossrank::checkpoint {
namespace {

bool is_one_ranks(std::string const& path) {
  auto const file = std::filesystem::path(path);
  return parse_shard_name(file.filename().string()).has_place() ||
         parse_shard_name(file.parent_path().filename().string()).has_place();
}

}  // namespace

void refuse_lone_shard(ShardSet const& set) {
  if (set.sources.size() != 1 || set.config.empty() || !is_one_ranks(set.sources.front()->name())) return;
  auto const book = RuleBook::make(set);
  for (auto const& tensor : set.sources.front()->tensors()) {
    SourceTensor const* const shard = &tensor;
    try {
      static_cast<void>(book.rule_for(tensor.name, {&shard, 1}));
    } catch (FormatError const& e) {
      // What no rule knows is taken as it is; only lengths that the config contradicts speak of other ranks.
      if (e.section() != "shape") continue;
      throw FormatError({.operation = "merge plan",
                         .message = "the only shard here is a part of the model: the files of other ranks are missing",
                         .expected = e.info().expected + " in " + e.info().resource,
                         .got = e.info().got,
                         .resource = set.sources.front()->name(),
                         .remedy = "copy the missing files there; a checkpoint is never merged with a part left out",
                         .section = "shards"});
    }
  }
}

}  // namespace crossrank::checkpoint
