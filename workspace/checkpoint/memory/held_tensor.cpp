#include "workspace/checkpoint/memory/held_tensor.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/algorithms/reduce.hpp"
#include "lib/core/as_size.hpp"

namespace crossrank::checkpoint {
namespace {

/// The mesh of one rank's tensor, with its ranks filled in.
struct Grid {
  std::vector<std::int64_t> shape{};
  std::vector<int> ranks{};
  bool operator==(Grid const&) const = default;

  [[nodiscard]] std::vector<MeshPlace> place_of(std::size_t number) const {
    std::vector<MeshPlace> place(shape.size());
    for (auto dim = shape.size(); dim-- > 0;) {
      place[dim] = {static_cast<std::int64_t>(number) % shape[dim], shape[dim]};
      number /= as_size(shape[dim]);
    }
    return place;
  }
};

std::int64_t resolved(std::int64_t dim, std::size_t dims) {
  return dim < 0 ? dim + static_cast<std::int64_t>(dims) : dim;
}

/// The dimension of the tensor that a placement shards; nothing if it shards none.
std::optional<std::int64_t> sharded_dim(Placement const& placement, std::size_t dims) {
  if (auto const* const shard = std::get_if<Shard>(&placement)) return resolved(shard->dim, dims);
  if (auto const* const shard = std::get_if<StridedShard>(&placement)) return resolved(shard->dim, dims);
  return std::nullopt;
}

std::string text_of(Shape const& shape) { return to_string(shape); }

/// One step in which a dimension of a tensor is sharded.
struct ShardingStep {
  MeshPlace place{};
  std::int64_t split_factor = 1;
};

/// Returns the steps that shard dimension `dim` of a tensor, in their order.
///
/// They follow the dimensions of the mesh, except that FSDP2 shards the pieces of tensor parallelism, whose mesh
/// dimension comes later: a split factor that is the product of the next steps means that these come first. For uneven
/// lengths this is not the same as a piece of each part.
std::vector<ShardingStep> sharding_steps(std::size_t dim, std::size_t dims, std::span<Placement const> placements,
                                         std::span<MeshPlace const> place) {
  std::vector<ShardingStep> steps;
  for (auto i = placements.size(); i-- > 0;) {
    if (sharded_dim(placements[i], dims) != static_cast<std::int64_t>(dim)) continue;
    auto const* const strided = std::get_if<StridedShard>(&placements[i]);
    ShardingStep step{place[i], strided == nullptr ? 1 : strided->split_factor};
    auto before = steps.begin();
    std::int64_t parts = 1;
    while (before != steps.end() && parts < step.split_factor) parts *= (before++)->place.size;
    if (parts == step.split_factor) {
      step.split_factor = 1;
    } else {
      before = steps.begin();
    }
    steps.insert(before, step);
  }
  return steps;
}

class TensorHolding {
 public:
  TensorHolding(std::string const& name, std::span<Member const> members, CellRanks const& cell,
                std::string const& operation)
      : name_(name), members_(members), cell_(cell), operation_(operation) {
    for (auto const& member : members) by_rank_.emplace(member.rank, &member);
  }

  DescribedHeldTensor find() {
    auto const& first = *members_.front().described;
    DescribedHeldTensor out{.tensor = {.name = name_, .dtype = first.dtype}};
    for (auto const& member : members_) require_same_kind(member);
    if (first.first_element >= 0) {
      out.tensor.shape = *first.placement->shape;
      hold_flat(out);
    } else {
      hold_boxes(out);
    }
    require_coverage(out);
    return out;
  }

 private:
  [[noreturn]] void refuse(std::string message, std::string expected, std::string got, std::vector<int> ranks,
                           std::string hint = "pass the same placements on all ranks that hold the tensor") const {
    throw FormatError({.operation = operation_,
                       .message = std::move(message),
                       .expected = std::move(expected),
                       .got = std::move(got),
                       .resource = name_,
                       .hint = std::move(hint),
                       .failed_ranks = std::move(ranks),
                       .section = "placements"});
  }
  [[noreturn]] void refuse_mesh(std::string message, std::string expected, std::string got) const {
    throw UsageError({.operation = operation_,
                      .message = std::move(message),
                      .expected = std::move(expected),
                      .got = std::move(got),
                      .resource = name_,
                      .hint = "correct the tensor's placement, or its mesh"});
  }

  void require_same_kind(Member const& member) const {
    auto const& first = *members_.front().described;
    auto const& other = *member.described;
    std::vector<int> const both{members_.front().rank, member.rank};
    if (other.dtype != first.dtype)
      refuse("ranks have different dtypes", std::string(name_of(first.dtype)), std::string(name_of(other.dtype)), both,
             "convert the tensor to one dtype on all ranks");
    bool const same_shape = other.placement->shape.has_value() == first.placement->shape.has_value() &&
                            (!first.placement->shape || *other.placement->shape == *first.placement->shape);
    if (other.placement->placements == first.placement->placements && same_shape &&
        (other.first_element < 0) == (first.first_element < 0))
      return;
    refuse("ranks " + std::to_string(both[0]) + " and " + std::to_string(both[1]) + " shard the tensor differently", {},
           {}, both);
  }

  /// Returns the shape of the whole tensor of one mesh.
  [[nodiscard]] Shape whole_shape(Grid const& grid, std::span<Placement const> placements) const {
    auto const& first = *by_rank_.at(grid.ranks.front())->described;
    if (first.placement->shape) return *first.placement->shape;
    auto shape = first.shape;
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      std::int64_t length = 0;
      for (std::size_t number = 0; number < grid.ranks.size(); ++number) {
        auto const place = grid.place_of(number);
        // The ranks that differ from the first one only along dimensions of the mesh that shard this dimension.
        bool counts = true;
        for (std::size_t i = 0; i < placements.size(); ++i)
          counts = counts && (place[i].coordinate == 0 ||
                              sharded_dim(placements[i], shape.size()) == static_cast<std::int64_t>(dim));
        if (!counts) continue;
        auto const& own = by_rank_.at(grid.ranks[number])->described->shape;
        if (own.size() != shape.size()) refuse_dims(first.shape, own, grid.ranks[number]);
        length += own[dim];
      }
      shape = shape.with(dim, length);
    }
    return shape;
  }

  [[noreturn]] void refuse_dims(Shape const& expected, Shape const& got, int rank) const {
    refuse("rank " + std::to_string(rank) + " has a tensor of another shape", text_of(expected), text_of(got), {rank});
  }

  /// Throws if a rank without tensors might hold a piece of this one. Without the piece, the tensor would be too short,
  /// or the values of a rank would be missing in its sum.
  void require_known_mesh(TensorPlacement const& placement) const {
    if (cell_.idle.empty() || !placement.mesh.shape.empty()) return;
    auto const needs_all_ranks = [&](Placement const& one) {
      return std::holds_alternative<Partial>(one) || (!std::holds_alternative<Replicate>(one) && !placement.shape);
    };
    if (std::ranges::none_of(placement.placements, needs_all_ranks)) return;
    auto const rank = "rank " + std::to_string(cell_.idle.front());
    refuse(rank + " has no tensors, and nothing tells whether it should hold a piece of this one", {}, {}, cell_.idle,
           "pass the tensor on " + rank + ", or give the ranks of the mesh in the placement");
  }

  /// Completes the mesh of a member and checks it.
  [[nodiscard]] Grid grid_of(Member const& member) const {
    auto const& mesh = member.described->placement->mesh;
    Grid grid{.shape = mesh.shape, .ranks = mesh.ranks};
    if (grid.ranks.empty()) {
      require_known_mesh(*member.described->placement);
      grid.ranks = cell_.holding;
    }
    if (grid.shape.empty()) grid.shape = {static_cast<std::int64_t>(grid.ranks.size())};
    std::int64_t product = 1;
    for (auto const length : grid.shape) {
      if (length < 1 || product > std::numeric_limits<std::int32_t>::max()) product = -1;
      product = product < 0 ? -1 : product * length;
    }
    if (product != static_cast<std::int64_t>(grid.ranks.size()))
      refuse_mesh("the shape of the mesh does not match its number of ranks", std::to_string(grid.ranks.size()),
                  std::to_string(product));
    auto sorted = grid.ranks;
    std::sort(sorted.begin(), sorted.end());
    auto const twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end()) refuse_mesh("the mesh has a rank twice", "each rank once", std::to_string(*twice));
    if (!std::binary_search(sorted.begin(), sorted.end(), member.rank))
      refuse_mesh("the mesh lacks a rank that holds the tensor", "rank " + std::to_string(member.rank), "other ranks");
    auto const& placements = member.described->placement->placements;
    if (!placements.empty() && placements.size() != grid.shape.size())
      refuse_mesh("the number of placements differs from that of the mesh's dimensions",
                  std::to_string(grid.shape.size()), std::to_string(placements.size()));
    for (auto const rank : grid.ranks) {
      if (by_rank_.contains(rank)) continue;
      refuse("rank " + std::to_string(rank) + " lacks the tensor", {}, {}, {rank},
             "pass the tensor on all ranks of its mesh; a rank without entries passes an empty tensor");
    }
    return grid;
  }

  /// Returns the meshes of all members, each once. Several meshes hold replicas.
  [[nodiscard]] std::vector<Grid> grids() const {
    std::vector<Grid> all;
    std::map<int, std::size_t> of_rank;
    for (auto const& member : members_) {
      auto const known = of_rank.find(member.rank);
      auto grid = grid_of(member);
      if (known != of_rank.end()) {
        if (all[known->second] == grid) continue;
        refuse_mesh("two meshes share a rank", "equal or separate meshes", "rank " + std::to_string(member.rank));
      }
      for (auto const rank : grid.ranks) {
        if (!of_rank.emplace(rank, all.size()).second)
          refuse_mesh("two meshes share a rank", "equal or separate meshes", "rank " + std::to_string(rank));
      }
      if (!all.empty() && all.front().shape != grid.shape)
        refuse("ranks " + std::to_string(all.front().ranks.front()) + " and " + std::to_string(member.rank) +
                   " shard the tensor differently",
               {}, {}, {member.rank});
      all.push_back(std::move(grid));
    }
    return all;
  }

  void set_units(DescribedHeldTensor& out, bool flat) const {
    auto const group = element_group(out.tensor.dtype);
    out.held.unit = group.bytes;
    if (flat) {
      out.held.lengths = {out.tensor.shape.numel()};
    } else {
      out.held.lengths.assign(out.tensor.shape.begin(), out.tensor.shape.end());
    }
    if (!out.held.lengths.empty()) out.held.lengths.back() = in_units(out.held.lengths.back(), group);
  }

  [[nodiscard]] std::int64_t in_units(std::int64_t elements, ElementGroup group) const {
    if (elements % group.elements != 0)
      refuse("a piece begins or ends inside a byte", "multiples of " + std::to_string(group.elements) + " elements",
             std::to_string(elements), {}, "shard the tensor along another dimension");
    return elements / group.elements;
  }

  void hold_flat(DescribedHeldTensor& out) const {
    auto const group = element_group(out.tensor.dtype);
    set_units(out, true);
    auto const whole = out.held.lengths.front();
    std::map<std::int64_t, std::size_t> at_place;
    for (auto const& member : members_) {
      auto const numel = in_units(member.described->shape.numel(), group);
      auto const begin = std::min(in_units(member.described->first_element, group), whole);
      auto const length = std::min(numel, whole - begin);
      if (length == 0) continue;
      auto const [at, fresh] = at_place.emplace(begin, out.held.boxes.size());
      if (fresh) out.held.boxes.push_back({.box = {{begin}, {length}}, .lengths = {numel}});
      if (out.held.boxes[at->second].box.size.front() != length)
        refuse("replicas of a piece have different lengths", std::to_string(out.held.boxes[at->second].box.size[0]),
               std::to_string(length), {member.rank});
      out.held.boxes[at->second].copies.push_back({member.rank});
    }
    std::sort(out.held.boxes.begin(), out.held.boxes.end(),
              [](auto const& a, auto const& b) { return a.box.begin < b.box.begin; });
  }

  void hold_boxes(DescribedHeldTensor& out) {
    auto const all = grids();
    std::vector<Placement> placements = members_.front().described->placement->placements;
    placements.resize(all.front().shape.size(), Replicate{});
    out.tensor.shape = whole_shape(all.front(), placements);
    require_valid(out, placements);
    set_units(out, false);
    std::map<std::vector<std::int64_t>, std::vector<std::size_t>> boxes_at;  // by the coordinates that select a piece
    for (auto const& grid : all) {
      std::map<std::vector<std::int64_t>, std::size_t> copy_at;
      for (std::size_t number = 0; number < grid.ranks.size(); ++number)
        add_rank(out, placements, grid, number, boxes_at, copy_at);
    }
  }

  void require_valid(DescribedHeldTensor& out, std::span<Placement const> placements) const {
    auto const dims = out.tensor.shape.size();
    for (auto const& placement : placements) {
      auto const dim = sharded_dim(placement, dims);
      if (dim && (*dim < 0 || *dim >= static_cast<std::int64_t>(dims)))
        refuse_mesh("a placement shards a dimension that the tensor does not have",
                    "a dimension of " + text_of(out.tensor.shape), std::to_string(*dim));
      auto const* const strided = std::get_if<StridedShard>(&placement);
      if (strided != nullptr && strided->split_factor < 1)
        refuse_mesh("a split factor must be at least 1", "1 or more", std::to_string(strided->split_factor));
      auto const* const partial = std::get_if<Partial>(&placement);
      if (partial == nullptr) continue;
      if (out.held.combine && *out.held.combine != partial->op)
        refuse_mesh("partial values with different operations cannot be combined", "one operation", "two");
      out.held.combine = partial->op;
    }
    // Throws for a dtype that the operation does not have.
    if (out.held.combine)
      (void)algorithms::reducer({.dtype = out.tensor.dtype, .op = *out.held.combine}, operation_.c_str());
  }

  using Coordinates = std::vector<std::int64_t>;

  void add_rank(DescribedHeldTensor& out, std::span<Placement const> placements, Grid const& grid, std::size_t number,
                std::map<Coordinates, std::vector<std::size_t>>& boxes_at,
                std::map<Coordinates, std::size_t>& copy_at) {
    auto const place = grid.place_of(number);
    auto const& member = *by_rank_.at(grid.ranks[number]);
    Coordinates piece;
    Coordinates copy;  // also tells the pieces apart
    for (std::size_t i = 0; i < placements.size(); ++i) {
      bool const is_sharded = sharded_dim(placements[i], out.tensor.shape.size()).has_value();
      if (is_sharded) piece.push_back(place[i].coordinate);
      if (!std::holds_alternative<Partial>(placements[i])) copy.push_back(place[i].coordinate);
    }
    auto const [found, fresh] = boxes_at.emplace(piece, std::vector<std::size_t>());
    if (fresh) found->second = add_boxes(out, held_entries(out.tensor.shape, placements, place), member);
    require_shape(out, placements, place, member);
    if (!found->second.empty()) require_same_strides(out.held.boxes[found->second.front()], out.tensor.dtype, member);
    for (auto const box : found->second) {
      auto& copies = out.held.boxes[box].copies;
      auto const at = copy_at.emplace(copy, copies.size()).first->second;
      if (at == copies.size()) copies.emplace_back();
      copies[at].push_back(member.rank);
    }
  }

  /// Adds the boxes of one piece: all combinations of the ranges of its dimensions.
  std::vector<std::size_t> add_boxes(DescribedHeldTensor& out, std::vector<IndexRanges> const& entries,
                                     Member const& member) const {
    auto const group = element_group(out.tensor.dtype);
    auto const dims = entries.size();
    std::vector<std::size_t> added;
    HeldBox box;
    box.lengths.assign(member.described->shape.begin(), member.described->shape.end());
    box.box = {std::vector<std::int64_t>(dims), std::vector<std::int64_t>(dims)};
    box.begin.resize(dims);
    if (dims > 0) box.lengths.back() = in_units(box.lengths.back(), group);
    auto const descend = [&](auto const& self, std::size_t dim) -> void {
      if (dim == dims) {
        added.push_back(out.held.boxes.size());
        out.held.boxes.push_back(box);
        return;
      }
      std::int64_t at = 0;
      for (auto const& range : entries[dim]) {
        bool const last = dim + 1 == dims;
        box.box.begin[dim] = last ? in_units(range.begin, group) : range.begin;
        box.box.size[dim] = last ? in_units(range.length, group) : range.length;
        box.begin[dim] = last ? in_units(at, group) : at;
        self(self, dim + 1);
        at += range.length;
      }
    };
    descend(descend, 0);
    return added;
  }

  /// Checks the shape of one rank's tensor. It may be padded if the shape of the whole tensor is given.
  void require_shape(DescribedHeldTensor const& out, std::span<Placement const> placements,
                     std::vector<MeshPlace> const& place, Member const& member) const {
    auto const& own = member.described->shape;
    auto const dims = out.tensor.shape.size();
    if (own.size() != dims) refuse_dims(out.tensor.shape, own, member.rank);
    auto const expected = held_entries(out.tensor.shape, placements, place);
    auto first = place;
    for (auto& one : first) one.coordinate = 0;
    auto const padded = held_entries(out.tensor.shape, placements, first);
    bool fits = true;
    auto wanted = out.tensor.shape;
    for (std::size_t dim = 0; dim < dims; ++dim) {
      auto const length = length_of(expected[dim]);
      auto const max = member.described->placement->shape ? length_of(padded[dim]) : length;
      fits = fits && own[dim] >= length && own[dim] <= std::max(max, length);
      wanted = wanted.with(dim, length);
    }
    if (fits) return;
    refuse("the piece of rank " + std::to_string(member.rank) + " does not have the shape that its placement gives",
           text_of(wanted) + " of " + text_of(out.tensor.shape), text_of(own), {member.rank},
           "divide the tensor into chunks of equal length, the last ones shorter, or give `first_element`");
  }

  /// Checks that a copy of a box is laid out like the first copy: its padding is in dimension 0, or is the same.
  void require_same_strides(HeldBox const& box, Dtype dtype, Member const& member) const {
    std::vector<std::int64_t> own(member.described->shape.begin(), member.described->shape.end());
    if (!own.empty()) own.back() = in_units(own.back(), element_group(dtype));
    if (own.size() < 2 || std::equal(own.begin() + 1, own.end(), box.lengths.begin() + 1)) return;
    refuse("copies of a piece are padded differently", {}, text_of(member.described->shape), {member.rank},
           "pad all copies of a piece to the same shape, or none of them");
  }

  void require_coverage(DescribedHeldTensor const& out) const {
    if (out.tensor.shape.numel() == 0) return;
    std::vector<codec::ChunkBox> boxes;
    for (auto const& box : out.held.boxes) boxes.push_back(box.box);
    auto const problem = codec::find_coverage_error(out.held.lengths, boxes);
    if (!problem) return;
    refuse("the pieces of the ranks do not cover the tensor exactly once: " + *problem, text_of(out.tensor.shape), {},
           {});
  }

  std::string const& name_;
  std::span<Member const> members_;
  CellRanks const& cell_;
  std::string const& operation_;
  std::map<int, Member const*> by_rank_{};
};

}  // namespace

std::vector<IndexRanges> held_entries(Shape const& shape, std::span<Placement const> placements,
                                      std::span<MeshPlace const> place) {
  std::vector<IndexRanges> entries;
  for (auto const length : shape) entries.push_back(length > 0 ? IndexRanges{{0, length}} : IndexRanges{});
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    for (auto const& step : sharding_steps(dim, shape.size(), placements, place))
      entries[dim] = strided_chunk_of(entries[dim], step.split_factor, step.place);
  }
  return entries;
}

DescribedHeldTensor hold_tensor(std::string const& name, std::span<Member const> members, CellRanks const& cell,
                                std::string const& operation) {
  return TensorHolding(name, members, cell, operation).find();
}

}  // namespace crossrank::checkpoint
