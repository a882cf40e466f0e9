#pragma once
#include <string_view>

/// File name endings of DeepSpeed.
namespace crossrank::checkpoint::deepspeed {

inline constexpr std::string_view model_ending = "_model_states.pt";
inline constexpr std::string_view optim_ending = "_optim_states.pt";

}  // namespace crossrank::checkpoint::deepspeed
