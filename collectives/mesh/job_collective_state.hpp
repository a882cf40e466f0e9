#pragma once
#include <optional>

#include <crossrank/mesh.hpp>

namespace crossrank {

struct JobCollective::State {
  Collective world;
  Collective dp;
  std::optional<Device> device{};        ///< empty: `default_device()`
  std::optional<JobCollective> local{};  ///< empty: the job itself
  std::optional<JobCollective> tp{};     ///< empty: the job itself
  std::optional<Mesh> mesh{};
  std::optional<Mesh> nodes{};
  std::optional<Mesh> dp_mesh{};
  std::optional<Mesh> tp_mesh{};
};

}  // namespace crossrank
