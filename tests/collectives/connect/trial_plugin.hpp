#pragma once
#include <crossrank/spi/plugin.hpp>

namespace crossrank::test {

/// The exported function of the plugin that returns the last request.
using LastTrialRequest = spi::PluginRequest const* (*)() noexcept;
inline constexpr char const* last_trial_request_name = "last_trial_request";

}  // namespace crossrank::test
