#pragma once
#include <string>
#include <string_view>
#include <utility>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/source/directory_listing.hpp"

/// File name endings of DeepSpeed, and the error for a directory that lacks files.
namespace crossrank::checkpoint::deepspeed {

inline constexpr std::string_view model_ending = "_model_states.pt";
inline constexpr std::string_view optim_ending = "_optim_states.pt";

[[noreturn]] inline void refuse(DirectoryListing const& listing, std::string message, std::string got,
                                std::string hint) {
  throw FormatError({.operation = "checkpoint open",
                     .message = std::move(message),
                     .got = std::move(got),
                     .resource = listing.path.string(),
                     .hint = std::move(hint),
                     .section = to_string(ErrorSection::files)});
}

}  // namespace crossrank::checkpoint::deepspeed
