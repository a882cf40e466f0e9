#pragma once
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/export.hpp>

namespace crossrank {

struct Axis {
  std::string_view name;
  int size;
};

/// The ranks of a group as a grid with named axes, the last one fastest, as torch's `init_device_mesh`.
///
/// Made by all ranks of `world`, one meeting for each axis. `UsageError` when the sizes do not multiply to the number
/// of ranks, or a name comes twice. Copies are cheap and share the groups.
class CROSSRANK_EXPORT Mesh {
 public:
  Mesh(Collective const& world, std::initializer_list<Axis> axes);
  Mesh(Collective const& world, std::vector<Axis> const& axes);

  /// The group along that axis that holds this rank. `UsageError` for an unknown name, naming those there are.
  [[nodiscard]] Collective const& operator[](std::string_view axis) const;
  /// All groups along that axis, as ranks of the world: what `GroupCoordinator` and `split` take.
  [[nodiscard]] std::vector<std::vector<int>> groups(std::string_view axis) const;
  /// This rank's place along that axis.
  [[nodiscard]] int coordinate(std::string_view axis) const;

 private:
  struct State;
  [[nodiscard]] std::size_t index(std::string_view axis) const;
  std::shared_ptr<State const> state_;
};

}  // namespace crossrank
