#include "transforms/model/common_values.hpp"

#include <algorithm>

#include <crossrank/error.hpp>
#include <crossrank/objects.hpp>

#include "collectives/spi/error_in.hpp"
#include "lib/core/at_rank.hpp"

namespace crossrank::transforms {
namespace {

constexpr std::size_t max_bytes = std::size_t{256} << 20;

/// Something that all ranks must have alike.
struct Fact {
  std::string name{};
  std::string value{};
  bool operator==(Fact const&) const = default;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(name, value);
  }
};

/// Leaves out the number of the device, because each rank may have its own.
Fact fact_of(Parameter const& parameter) {
  auto const& value = parameter.value;
  return {parameter.name, std::string(name_of(value.dtype())) + " " + to_string(value.shape()) +
                              (value.device() == Device::cpu() ? "" : " on a GPU") +
                              (parameter.requires_grad ? "" : ", frozen")};
}

std::vector<Fact> facts_of(TrainableModel const& model, Json const& settings, char const* operation) {
  std::vector<Fact> facts{{"transform", operation}};
  auto const flat = settings.flatten();
  for (auto const& [path, value] : flat.items()) {
    if (path != "/name") facts.push_back({"setting " + path.substr(1), value.dump()});
  }
  for (auto const& unit : model.units())
    facts.push_back({"unit " + unit.name, "of " + std::to_string(unit.parameters.size()) + " parameters"});
  for (auto const& parameter : model.parameters()) facts.push_back(fact_of(*parameter));
  for (auto const& buffer : model.buffers()) facts.push_back(fact_of(*buffer));
  return facts;
}

[[noreturn]] void refuse(Collective const& group, char const* operation, int rank, Fact const& expected,
                         Fact const& got) {
  auto const text = [](Fact const& fact) { return fact.name.empty() ? "nothing" : fact.name + " " + fact.value; };
  throw MismatchError(error_in(*group.transport(),
                               {.operation = operation,
                                .message = "rank " + std::to_string(rank) + " has another model or config than rank 0",
                                .expected = text(expected),
                                .got = text(got),
                                .resource = expected.name.empty() ? got.name : expected.name,
                                .hint = "build the same model and apply the same transform on all ranks",
                                .failed_ranks = {rank}}));
}

}  // namespace

void require_same_model(Collective const& group, TrainableModel const& model, Json const& settings,
                        char const* operation) {
  auto const own = facts_of(model, settings, operation);
  auto const expected = group.broadcast_object(own);
  std::vector<Fact> difference;  // empty, or the first expected fact and the one of this rank
  for (std::size_t i = 0; i < std::max(own.size(), expected.size()) && difference.empty(); ++i) {
    auto const a = i < expected.size() ? expected[i] : Fact();
    auto const b = i < own.size() ? own[i] : Fact();
    if (a != b) difference = {a, b};
  }
  auto const differences = group.all_gather_objects(difference);
  for (int rank = 1; rank < group.world_size(); ++rank) {
    auto const& found = at_rank(differences, rank);
    if (!found.empty()) refuse(group, operation, rank, found.at(0), found.at(1));
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
