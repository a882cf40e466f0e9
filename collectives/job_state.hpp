#pragma once
#include <optional>

#include <crossrank/mesh.hpp>

namespace crossrank {

struct JobCollective::State {
  Collective world;
  Collective local;
  Collective tp;
  Collective dp;
  Device device{};
  int local_rank = 0;
  int local_world_size = 1;
  std::optional<Mesh> mesh{};
  std::optional<Mesh> nodes{};
  std::optional<Mesh> dp_mesh{};
  std::optional<Mesh> tp_mesh{};
};

}  // namespace crossrank
