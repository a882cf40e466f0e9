#include <crossrank/checkpoint.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/codec/json/python_json.hpp"
#include "lib/core/at_rank.hpp"
#include "workspace/checkpoint/model/option_range.hpp"
#include "workspace/checkpoint/source/shard_metadata.hpp"
#include "workspace/checkpoint/source/state_dict_source.hpp"
#include "workspace/checkpoint/workers/equal_options.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"
#include "workspace/checkpoint/write/draw_number.hpp"
#include "workspace/checkpoint/write/write_checkpoint.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr char const* save_operation = "save sharded";

std::string rank_name(int rank, OutputFormat format) {
  return "rank" + std::to_string(rank) + (format == OutputFormat::torch ? ".pth" : ".safetensors");
}

OutputFile own_file(Collective const& world, StateDict const& weights, SaveOptions const& options, std::uint64_t job) {
  auto const source = std::make_shared<StateDictSource>("the weights of rank " + std::to_string(world.rank()), weights);
  if (options.format != OutputFormat::images)
    return lay_out_file(
        source, rank_name(world.rank(), options.format), options.format,
        to_header_metadata(
            {.rank = world.rank(), .count = world.world_size(), .job = codec::to_hex(job), .saved = true}));
  return lay_out_image(source, options.config, {.rank = world.rank(), .world_size = world.world_size(), .writer = job});
}

}  // namespace

Summary save_sharded(Collective const& world, StateDict const& weights, std::filesystem::path const& out,
                     SaveOptions const& options) {
  auto const started = std::chrono::steady_clock::now();
  require_equal_options(world, save_operation,
                        {{"format", option_text(options.format)},
                         {"force", option_text(options.force)},
                         {"read_back", option_text(options.read_back)}});
  auto const number = draw_number(world, save_operation);
  OutputFile mine;
  agree(world, save_operation, [&] {
    require_thread_count(save_operation, options.threads);
    require_config(save_operation, options.config);
    mine = own_file(world, weights, options, number);
  });
  mine.owner = world.rank();
  Json const record{mine.name, mine.bytes};
  auto const text = record.dump();
  WriteRequest request{.operation = save_operation, .out = out, .id = codec::to_hex(number)};
  auto const all = world.all_gatherv(std::as_bytes(std::span(text)));
  for (int rank = 0; rank < world.world_size(); ++rank) {
    auto const& bytes = at_rank(all, rank);
    auto const theirs = Json::parse(std::string_view(reinterpret_cast<char const*>(bytes.data()), bytes.size()));
    // Only the owner of a file needs the rest of its layout.
    OutputFile file{.name = theirs.at(0).get<std::string>()};
    file.bytes = theirs.at(1).get<std::uint64_t>();
    file.owner = rank;
    request.files.push_back(std::move(file));
  }
  at_rank(request.files, world.rank()) = std::move(mine);
  if (world.rank() == 0 && !options.config.empty())
    request.extras.push_back({.name = "config.json", .text = codec::to_python_json(options.config) + "\n"});
  request.force = options.force;
  request.read_back = options.read_back;
  request.threads = options.threads;
  request.on_progress = options.on_progress;
  request.stop = options.stop;
  auto summary = write_checkpoint(world, request);
  summary.elapsed = std::chrono::steady_clock::now() - started;
  return summary;
}

}  // namespace crossrank::checkpoint
