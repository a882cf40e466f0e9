#pragma once
#include <exception>
#include <string>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/error.hpp>

namespace crossrank {

/// Type and text of an exception, to send to other ranks.
struct SerializedException {
  std::string type{};
  std::string text{};

  template <class Archive>
  void serialize(Archive& archive) {
    archive(type, text);
  }
};

/// Serializes an exception: its demangled type, and its text, truncated to 16 KiB.
[[nodiscard]] SerializedException serialize_exception(std::exception_ptr const& error);

/// Returns the error that a rank throws when other ranks failed.
[[nodiscard]] RemoteError remote_error(Collective const& group, char const* operation, std::vector<int> failed_ranks,
                                       SerializedException const& failure);

}  // namespace crossrank
