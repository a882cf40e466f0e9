#include "transforms/model/common_values.hpp"

#include <algorithm>

#include <crossrank/error.hpp>
#include <crossrank/objects.hpp>

#include "lib/core/at_rank.hpp"

namespace crossrank::transforms {
namespace {

constexpr std::size_t max_bytes = std::size_t{256} << 20;

/// Leaves out the number of the device, because each rank may have its own.
std::string describe(Parameter const& parameter) {
  auto const& value = parameter.value;
  return parameter.name + " " + std::string(name_of(value.dtype())) + " " + to_string(value.shape()) +
         (value.device() == Device::cpu() ? "" : " on a GPU") + (parameter.requires_grad ? "" : ", frozen");
}

[[noreturn]] void refuse(Collective const& group, char const* operation, int rank, std::string expected,
                         std::string got) {
  auto const name = (expected.empty() ? got : expected).substr(0, (expected.empty() ? got : expected).find(' '));
  throw MismatchError({.operation = operation,
                       .message = "rank " + std::to_string(rank) + " has another model than rank 0",
                       .expected = expected.empty() ? "no such parameter" : std::move(expected),
                       .got = got.empty() ? "no such parameter" : std::move(got),
                       .resource = name,
                       .hint = "build the same model on all ranks",
                       .group = group.name(),
                       .rank = group.rank(),
                       .world_size = group.world_size(),
                       .failed_ranks = {rank}});
}

}  // namespace

void abort_group(Collective const& group, std::string_view why) noexcept {
  try {
    group.abort("rank " + std::to_string(group.rank()) + ": " + std::string(why));
  } catch (std::exception const&) {
    group.abort(why);  // there is no memory for a longer text
  }
}

void require_same_parameters(Collective const& group, std::vector<std::shared_ptr<Parameter>> const& parameters,
                             char const* operation) {
  std::string mine;
  for (auto const& parameter : parameters) mine += describe(*parameter) + '\n';
  auto const all = group.all_gather_objects(mine);
  auto const lines_of = [](std::string const& text) {
    std::vector<std::string> lines;
    for (std::size_t at = 0; at < text.size();) {
      auto const end = text.find('\n', at);
      lines.push_back(text.substr(at, end - at));
      at = end + 1;
    }
    return lines;
  };
  auto const expected = lines_of(all.front());
  for (int rank = 1; rank < group.world_size(); ++rank) {
    auto const& text = at_rank(all, rank);
    if (text == all.front()) continue;
    auto const got = lines_of(text);
    for (std::size_t i = 0; i < std::max(got.size(), expected.size()); ++i) {
      auto const a = i < expected.size() ? expected[i] : std::string();
      auto const b = i < got.size() ? got[i] : std::string();
      if (a != b) refuse(group, operation, rank, a, b);
    }
  }
}

void broadcast_values(Collective const& group, std::vector<std::shared_ptr<Parameter>> const& parameters) {
  for (std::size_t next = 0; next < parameters.size();) {
    auto const first = next;
    std::size_t bytes = 0;
    do {
      bytes += parameters[next++]->value.nbytes();
    } while (next < parameters.size() && bytes + parameters[next]->value.nbytes() <= max_bytes);
    auto buffer = Tensor::empty({static_cast<std::int64_t>(bytes)}, Dtype::u8);
    auto const for_each = [&](auto&& copy) {
      auto* at = buffer.mutable_bytes().data();
      for (auto i = first; i < next; ++i) {
        auto& value = parameters[i]->value;
        if (value.nbytes() != 0) copy(value, at);
        at += value.nbytes();
      }
    };
    auto const view = [](Tensor const& like, std::byte* at) {
      return Tensor::from_blob(at, like.shape(), like.dtype());
    };
    if (group.rank() == 0) for_each([&](Tensor const& value, std::byte* at) { view(value, at).copy_from(value); });
    group.broadcast(buffer);
    if (group.rank() != 0) for_each([&](Tensor& value, std::byte* at) { value.copy_from(view(value, at)); });
  }
}

}  // namespace crossrank::transforms
