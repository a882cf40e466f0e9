#pragma once
#include <exception>
#include <string>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/error.hpp>

namespace crossrank {

/// An exception in words, as it goes to other ranks.
struct SerializedException {
  std::string type{};
  std::string text{};

  template <class Archive>
  void serialize(Archive& archive) {
    archive(type, text);
  }
};

/// Type (as its source spells it) and text of an exception; the text is cut after 16 KiB.
[[nodiscard]] SerializedException serialize_exception(std::exception_ptr const& error);

/// What a rank throws for the failure of others.
[[nodiscard]] RemoteError remote_error(Collective const& group, char const* operation, std::vector<int> failed_ranks,
                                       SerializedException const& failure);

}  // namespace crossrank
