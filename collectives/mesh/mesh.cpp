#include <crossrank/mesh.hpp>

#include <algorithm>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/core/with_operation_name.hpp"
#include "lib/core/as_size.hpp"

namespace crossrank {

struct Mesh::State {
  std::vector<std::string> names;
  std::vector<int> sizes;
  std::vector<int> strides;  ///< distance between neighbours along the axis, in ranks
  int rank = 0;
  int world_size = 0;
  std::vector<Collective> along;
};

namespace {

std::vector<std::vector<int>> groups_along(int world_size, int size, int stride) {
  std::vector<std::vector<int>> groups;
  for (int first = 0; first < world_size; ++first) {
    if (first / stride % size != 0) continue;
    auto& group = groups.emplace_back();
    for (int i = 0; i < size; ++i) group.push_back(first + i * stride);
  }
  return groups;
}

}  // namespace

Mesh::Mesh(Collective const& world, std::initializer_list<Axis> axes) : Mesh(world, std::vector<Axis>(axes)) {}

Mesh::Mesh(Collective const& world, std::vector<Axis> const& axes) {
  require_open(world, "Mesh");
  auto state = std::make_shared<State>();
  state->rank = world.rank();
  state->world_size = world.world_size();
  std::int64_t product = 1;
  std::string text;
  for (auto const& axis : axes) {
    bool const twice = std::find(state->names.begin(), state->names.end(), axis.name) != state->names.end();
    if (axis.size < 1 || twice) {
      throw UsageError({.operation = "Mesh",
                        .message = twice ? "an axis is listed twice" : "an axis has no ranks",
                        .got = std::string(axis.name) + " = " + std::to_string(axis.size),
                        .hint = twice ? "give each axis a name of its own" : "give each axis a size of at least 1"});
    }
    state->names.emplace_back(axis.name);
    state->sizes.push_back(axis.size);
    product = std::min<std::int64_t>(product * axis.size, std::int64_t{1} << 40);
    text += (text.empty() ? "" : " x ") + std::string(axis.name) + " " + std::to_string(axis.size);
  }
  if (product != state->world_size) {
    throw UsageError({.operation = "Mesh",
                      .message = "the product of the axes is not the number of ranks",
                      .expected = std::to_string(state->world_size),
                      .got = text + " = " + std::to_string(product),
                      .hint = "change the sizes, or start as many ranks as they need"});
  }
  state->strides.assign(axes.size(), 1);
  for (auto i = axes.size(); i-- > 1;) state->strides[i - 1] = state->strides[i] * state->sizes[i];
  for (std::size_t i = 0; i < axes.size(); ++i) {
    state->along.push_back(
        world.split(groups_along(state->world_size, state->sizes[i], state->strides[i]), state->names[i]));
  }
  state_ = std::move(state);
}

std::size_t Mesh::index(std::string_view axis) const {
  auto const found = std::find(state_->names.begin(), state_->names.end(), axis);
  if (found != state_->names.end()) return as_size(found - state_->names.begin());
  std::string known;
  for (auto const& name : state_->names) known += (known.empty() ? "" : ", ") + name;
  throw UsageError(
      {.operation = "Mesh", .message = "the axis does not exist", .expected = known, .got = std::string(axis)});
}

Collective const& Mesh::operator[](std::string_view axis) const { return state_->along[index(axis)]; }

std::vector<std::vector<int>> Mesh::groups(std::string_view axis) const {
  auto const i = index(axis);
  return groups_along(state_->world_size, state_->sizes[i], state_->strides[i]);
}

int Mesh::coordinate(std::string_view axis) const {
  auto const i = index(axis);
  return state_->rank / state_->strides[i] % state_->sizes[i];
}

}  // namespace crossrank
