#include "workspace/checkpoint/plan/fused_tensor.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/plan/row_placement.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"

namespace crossrank::checkpoint {
namespace {

FusedPlace const& place_of(MergedTensor const& part) { return *part.rule->fused; }

std::string const& name_of_part(MergedTensor const& part) { return place_of(part).parts.at(place_of(part).part); }

std::string described(MergedTensor const& part) {
  return std::string(name_of(part.dtype)) + " " + to_string(part.shape);
}

[[noreturn]] void refuse_part(MergedTensor const& part, std::string const& problem, std::string expected,
                              std::string got) {
  throw FormatError(
      {.operation = plan_operation,
       .message = "\"" + name_of_part(part) + "\" cannot become a part of \"" + part.name + "\": " + problem,
       .expected = std::move(expected),
       .got = std::move(got),
       .resource = name_of_part(part),
       .hint = "correct the \"parts\" of the rule, or the sizes in config and rule file",
       .section = to_string(ErrorSection::rules)});
}

void require_all_parts(std::vector<MergedTensor> const& parts) {
  auto const& names = place_of(parts.front()).parts;
  for (std::size_t number = 0; number < names.size(); ++number) {
    if (number < parts.size() && place_of(parts[number]).part == number) continue;
    throw FormatError({.operation = plan_operation,
                       .message = "\"" + names[number] + "\" is missing, a part of \"" + parts.front().name + "\"",
                       .expected = std::to_string(names.size()) + " parts",
                       .got = std::to_string(parts.size()),
                       .resource = names[number],
                       .hint = "pass the weights of all parts of the layer",
                       .section = to_string(ErrorSection::coverage)});
  }
}

std::int64_t rows_of(MergedTensor const& part) { return part.shape.size() == 0 ? 0 : part.shape[0]; }

/// Returns how many times its width each part has, and checks the parts against the first one.
std::int64_t times_of(std::vector<MergedTensor> const& parts) {
  auto const& first = parts.front();
  auto const& widths = place_of(first).widths;
  auto const times = place_of(first).times > 0 ? place_of(first).times : rows_of(first) / widths.front();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    auto const& part = parts[i];
    if (part.rule->combines_values() || !comes_from_inputs_alone(part))
      refuse_part(part, "its values are computed", "stored values", part.rule->reason);
    bool alike = part.dtype == first.dtype && part.shape.size() == first.shape.size() && part.shape.size() > 0;
    for (std::size_t d = 1; alike && d < first.shape.size(); ++d) alike = part.shape[d] == first.shape[d];
    if (!alike)
      refuse_part(part, "it differs from the first part", described(first) + ", dimension 0 free", described(part));
    if (place_of(part).widths != widths)
      refuse_part(part, "it is in another number format than the first part", described(first), described(part));
    if (rows_of(part) != times * widths[i]) {
      refuse_part(part, "its rows contradict the widths of the parts",
                  std::to_string(times) + " times " + std::to_string(widths[i]), std::to_string(rows_of(part)));
    }
  }
  return times;
}

/// Returns the bytes of `count` rows.
std::uint64_t bytes_of_rows(MergedTensor const& part, std::int64_t count) {
  std::uint64_t bits = bits_of(part.dtype) * static_cast<std::uint64_t>(count);
  for (std::size_t d = 1; d < part.shape.size(); ++d) bits *= static_cast<std::uint64_t>(part.shape[d]);
  if (bits % 8 != 0) refuse_part(part, "its end falls inside a byte", "whole bytes", std::to_string(bits) + " bits");
  return bits / 8;
}

}  // namespace

MergedTensor fuse_tensors(std::vector<MergedTensor> parts) {
  std::sort(parts.begin(), parts.end(),
            [](auto const& a, auto const& b) { return place_of(a).part < place_of(b).part; });
  require_all_parts(parts);
  auto const& first = parts.front();
  auto const times = times_of(parts);
  bool const grouped = place_of(first).grouped;
  // A row of the result is a group, or all of it.
  std::vector<RowPlacement> places;
  std::uint64_t row = 0;
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    auto const bytes = bytes_of_rows(parts[i], grouped ? place_of(first).widths[i] : rows_of(parts[i]));
    places.push_back({.shift = row, .old_row = bytes});
    row += bytes;
    rows += rows_of(parts[i]);
  }
  MergedTensor fused{.name = first.name, .dtype = first.dtype, .shape = first.shape.with(0, rows)};
  fused.bytes = dense_bytes(fused.shape, fused.dtype);
  MergeRule rule{.kind = Concatenate{}, .reason = "fused of " + std::to_string(parts.size()) + " layers"};
  if (grouped) rule.reason += ", whose rows alternate in " + std::to_string(times) + " groups";
  fused.rule = std::make_shared<MergeRule const>(std::move(rule));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    places[i].new_row = row;
    for (auto const& piece : parts[i].pieces) place_rows(piece, places[i], fused.pieces);
    fused.inputs.insert(fused.inputs.end(), parts[i].inputs.begin(), parts[i].inputs.end());
    fused.replica_runs.insert(fused.replica_runs.end(), parts[i].replica_runs.begin(), parts[i].replica_runs.end());
  }
  return fused;
}

}  // namespace crossrank::checkpoint
