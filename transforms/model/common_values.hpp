#pragma once
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/error.hpp>
#include <crossrank/json.hpp>
#include <crossrank/transforms/model.hpp>

#include "lib/core/text/list_text.hpp"

namespace crossrank::transforms {

/// Throws `MismatchError` on all ranks if the transform, one of its settings, a unit, or the name, shape or dtype of a
/// parameter or buffer differs from that of rank 0. `settings`: the config as JSON. Collective.
void require_same_model(Collective const& group, TrainableModel const& model, Json const& settings,
                        char const* operation);

/// Gives all ranks the values of rank 0, in one broadcast for each 256 MiB. Collective.
void broadcast_values(Collective const& group, std::vector<std::shared_ptr<Parameter>> const& parameters);

/// Runs a call on parameters. An error of it that names no other resource names them. `names` returns their names.
template <class Names, class Body>
void run_on(Names const& names, Body&& body) {
  try {
    std::forward<Body>(body)();
  } catch (Error const& error) {
    auto info = error.info();
    if (info.resource.empty()) info.resource = list_text(names(), 1);
    throw_error(error.code(), std::move(info));
  }
}

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
