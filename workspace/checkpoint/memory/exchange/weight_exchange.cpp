#include "workspace/checkpoint/memory/exchange/weight_exchange.hpp"

#include <numeric>
#include <utility>

#include "lib/core/as_size.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/tensor/copy_memory.hpp"
#include "workspace/checkpoint/memory/exchange/combine_values.hpp"

namespace crossrank::checkpoint {
namespace {

// One buffer is filled while the threads use the other.
constexpr std::size_t receive_buffers = 2;
// Limit of the blocks that are put together, except for those of the round that is prepared.
constexpr std::size_t max_block_bytes = std::size_t{32} << 20;

std::size_t sum_of(std::vector<std::int64_t> const& bytes) {
  return as_size(std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}));
}

Tensor tensor_of(ExportBuffers::Memory const& memory, std::size_t bytes) {
  return Tensor::from_blob(memory.data.get(), {static_cast<std::int64_t>(bytes)}, Dtype::u8);
}

}  // namespace

WeightExchange::WeightExchange(WeightCells const& cells, std::vector<std::vector<WorkUnit>> units, InputsOf inputs_of)
    : cells_(cells),
      schedule_(cells, std::move(units), std::move(inputs_of)),
      receiving_(std::make_shared<ExportBuffers>(receive_buffers)),
      sending_(std::make_shared<ExportBuffers>(1)) {}

bool WeightExchange::prepare_round(std::chrono::milliseconds limit) {
  if (!round_) {
    round_ = schedule_.next();
    in_ = {};
    packed_ = false;
  }
  if (!packed_) {
    pack();
    packed_ = true;
    CROSSRANK_CRASH_POINT("export.round.packed");
  }
  if (!out_.data) out_ = receiving_->take(sum_of(round_->receive_bytes), limit);
  // Blocks are given back when the threads have used their units, all but those of units that wait for further rounds.
  return out_.data != nullptr && receiving_->wait_for_blocks(max_block_bytes + open_block_bytes_, limit);
}

void WeightExchange::pack() {
  auto const bytes = sum_of(round_->send_bytes);
  in_ = sending_->take(bytes, std::chrono::milliseconds(0));
  auto* to = in_.data.get();
  for (auto const& sent : round_->sent) to = copy_own_part(sent.item, to);
}

void WeightExchange::exchange_round(Collective const& world) {
  if (round_->transfers) {
    auto const in = tensor_of(in_, sum_of(round_->send_bytes));
    auto out = tensor_of(out_, sum_of(round_->receive_bytes));
    world.all_to_allv(out, in, {.send = round_->send_bytes, .receive = round_->receive_bytes});
  }
  CROSSRANK_CRASH_POINT("export.round.exchanged");
}

void WeightExchange::finish_round() {
  open_units();
  unpack();
  finish_units();
  round_.reset();
  out_ = {};
}

std::size_t WeightExchange::block_size(PlannedBlock const& block) const {
  auto const unit = cells_.cells[block.cell]->held(block.tensor).unit;
  return as_size(block.last - block.first) * unit;
}

void WeightExchange::open_units() {
  for (auto& plan : round_->opened) {
    OpenUnit open{.items_left = plan.items};
    for (auto const& block : plan.blocks) {
      auto const& held = cells_.cells[block.cell]->held(block.tensor);
      Block made{
          .cell = block.cell, .tensor = block.tensor, .begin = static_cast<std::uint64_t>(block.first) * held.unit};
      std::shared_ptr<std::byte> memory;
      if (block.from == PlannedBlock::From::own) {
        use_own_memory(made, block, held.unit);
      } else if (block.from == PlannedBlock::From::items) {
        auto const allocated = receiving_->allocate(block_size(block));
        memory = allocated.data;
        made.bytes = allocated.first(allocated.bytes);
        made.owner = memory;
        open_block_bytes_ += allocated.bytes;
      }
      open.memory.push_back(std::move(memory));
      open.blocks.push_back(std::move(made));
    }
    auto const number = plan.unit;
    open.plan = std::move(plan);
    open_.emplace(number, std::move(open));
  }
}

std::uint32_t WeightExchange::own_tensor(std::uint32_t cell, std::uint32_t tensor) const {
  return cells_.cells[cell]->own(tensor);
}

void WeightExchange::use_own_memory(Block& made, PlannedBlock const& block, std::size_t unit) const {
  auto const tensor = own_tensor(block.cell, block.tensor);
  auto const begin = as_size(block.own_at) * unit;
  auto const size = block_size(block);
  if (!cells_.own->is_on_gpu(tensor)) {
    made.bytes = cells_.own->bytes(tensor, begin, size);
    return;
  }
  made.load = [own = cells_.own, buffers = receiving_, tensor, begin, size](Block& loaded) {
    auto const memory = buffers->allocate(size);
    loaded.bytes = memory.first(size);
    loaded.owner = memory.data;
    own->read(tensor, begin, memory.first(size));
  };
}

std::byte* WeightExchange::copy_own_part(TransferItem const& item, std::byte* to) const {
  read_own_units(cells_, own_tensor(item.cell, item.tensor), *item.held, *item.box, item.first, item.last,
                 [&](auto piece) {
                   copy_memory(to, piece.data(), piece.size());
                   to += piece.size();
                 });
  return to;
}

/// Gives each item its bytes. The items of a sender are in the order of the list.
void WeightExchange::unpack() {
  std::vector<std::byte const*> next(round_->receive_bytes.size());
  auto const* at = out_.data.get();
  for (std::size_t rank = 0; rank < next.size(); ++rank) {
    next[rank] = at;
    at += round_->receive_bytes[rank];
  }
  for (auto const& item : round_->received) {
    std::vector<std::byte const*> parts;
    std::vector<std::byte> own;
    for (auto const holder : *item.copy) {
      if (holder == cells_.rank) {
        own.resize(item.bytes);
        copy_own_part(item, own.data());
        parts.push_back(own.data());
        continue;
      }
      auto const rank = as_size(holder);
      parts.push_back(next[rank]);
      next[rank] += item.bytes;
    }
    put(item, parts);
  }
}

void WeightExchange::put(TransferItem const& item, std::vector<std::byte const*> const& parts) {
  auto& open = open_.at(item.unit);
  auto const& plan = open.plan.blocks[item.block];
  auto& block = open.blocks[item.block];
  --open.items_left;
  if (plan.from == PlannedBlock::From::item) {
    block.bytes = {parts.front(), item.bytes};
    block.owner = out_.data;
    return;
  }
  auto const* from = parts.front();
  std::vector<std::byte> combined;
  if (parts.size() > 1) {
    combined.resize(item.bytes);
    combine_values(cells_.cells[plan.cell]->tensors()[plan.tensor].dtype, item.held->combine, parts, combined);
    from = combined.data();
  }
  auto* const memory = open.memory[item.block].get();
  item.held->for_each_run(*item.box, item.first, item.last, [&](auto, auto to, auto count) {
    auto const size = as_size(count) * item.held->unit;
    copy_memory(memory + as_size(to - plan.first) * item.held->unit, from, size);
    from += size;
  });
}

/// Makes complete units readable. The others must not keep the buffer of the round.
void WeightExchange::finish_units() {
  for (auto at = open_.begin(); at != open_.end();) {
    auto& open = at->second;
    if (open.items_left > 0) {
      for (auto& block : open.blocks) {
        if (block.owner != out_.data) continue;
        auto const copy = receiving_->allocate(block.bytes.size());
        copy_memory(copy.data.get(), block.bytes.data(), block.bytes.size());
        block.bytes = copy.first(copy.bytes);
        block.owner = copy.data;
        open_block_bytes_ += copy.bytes;
      }
      ++at;
      continue;
    }
    for (auto const& block : open.blocks) {
      if (block.owner && block.owner != out_.data) open_block_bytes_ -= block.bytes.size();
    }
    received_->add(at->first, std::move(open.blocks));
    at = open_.erase(at);
  }
}

}  // namespace crossrank::checkpoint
