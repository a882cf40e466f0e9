#pragma once
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/transforms_model.hpp>

namespace crossrank::transforms {

/// Throws `MismatchError` on all ranks if names, shapes or dtypes differ from those of rank 0. Collective.
void require_same_parameters(Collective const& group, std::vector<std::shared_ptr<Parameter>> const& parameters,
                             char const* operation);

/// Gives all ranks the values of rank 0, in one broadcast for each 256 MiB. Collective.
void broadcast_values(Collective const& group, std::vector<std::shared_ptr<Parameter>> const& parameters);

/// Runs a part of a training step. An exception of it ends the group, so that all ranks get its message.
template <class Body>
decltype(auto) run_step(Collective const& group, char const* part, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (std::exception const& e) {
    group.abort(std::string(part) + " failed: " + e.what());
    throw;
  } catch (...) {
    group.abort(std::string(part) + " failed with an exception of an unknown type");
    throw;
  }
}

}  // namespace crossrank::transforms
