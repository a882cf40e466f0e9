#include "collectives/objects/serialized_exception.hpp"

#include <cstdlib>
#include <memory>
#include <typeinfo>

#include <cxxabi.h>

#include "lib/core/rank_list.hpp"

namespace crossrank {
namespace {

constexpr std::size_t longest_text = std::size_t{16} << 10;

std::string spelled(std::type_info const& type) {
  int status = 0;
  std::unique_ptr<char, decltype(&std::free)> const name(abi::__cxa_demangle(type.name(), nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 ? name.get() : type.name();
}

}  // namespace

SerializedException serialize_exception(std::exception_ptr const& error) {
  try {
    std::rethrow_exception(error);
  } catch (std::exception const& e) {
    return {spelled(typeid(e)), std::string(e.what()).substr(0, longest_text)};
  } catch (...) {
    auto const* const type = abi::__cxa_current_exception_type();
    return {type == nullptr ? "unknown" : spelled(*type), "an exception that is not a std::exception"};
  }
}

RemoteError remote_error(Collective const& group, char const* operation, std::vector<int> failed_ranks,
                         SerializedException const& failure) {
  auto const who = (failed_ranks.size() == 1 ? "rank " : "ranks ") + node::format_ranks(failed_ranks);
  return RemoteError({.operation = operation,
                      .message = who + " threw " + failure.type + ": " + failure.text,
                      .group = group.name(),
                      .rank = group.rank(),
                      .world_size = group.world_size(),
                      .failed_ranks = std::move(failed_ranks),
                      .remote_type = failure.type});
}

}  // namespace crossrank
