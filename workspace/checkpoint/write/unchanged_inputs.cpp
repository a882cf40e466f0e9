#include "workspace/checkpoint/write/unchanged_inputs.hpp"

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <unordered_map>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/model/error_sections.hpp"

namespace crossrank::checkpoint {
namespace {

using Numbers = std::unordered_map<std::string_view, std::size_t>;

/// Returns the numbers of the inputs that hold the data of a file, or nothing if they are not known.
std::optional<std::set<std::size_t>> inputs_with_data_of(OutputFile const& file, Numbers const& numbers) {
  std::set<std::size_t> inputs;
  for (auto const& tensor : file.tensors) {
    auto const paths = file.source->files_of(tensor.tensor);
    if (paths.empty()) return std::nullopt;
    for (auto const& path : paths) {
      auto const known = numbers.find(path);
      if (known == numbers.end()) return std::nullopt;
      inputs.insert(known->second);
    }
  }
  return inputs;
}

}  // namespace

void UnchangedInputs::require_all() const {
  auto const pool = std::make_shared<FilePool>();
  for (auto const& input : inputs_) require(input, *pool);
}

void UnchangedInputs::assign_to(std::span<OutputFile const> files) {
  inputs_of_.clear();
  if (inputs_.empty()) return;
  Numbers numbers;
  for (std::size_t i = 0; i < inputs_.size(); ++i) numbers.emplace(inputs_[i].path, i);
  std::set<std::size_t> of_no_file;
  for (std::size_t i = 0; i < inputs_.size(); ++i) of_no_file.insert(i);
  std::map<std::string_view, std::set<std::size_t>> known;
  for (auto const& file : files) {
    auto inputs = inputs_with_data_of(file, numbers);
    if (!inputs) continue;
    for (auto const input : *inputs) of_no_file.erase(input);
    known.emplace(file.name, *std::move(inputs));
  }
  for (auto& [name, inputs] : known) {
    inputs.insert(of_no_file.begin(), of_no_file.end());
    inputs_of_.try_emplace(std::string(name), inputs.begin(), inputs.end());
  }
}

void UnchangedInputs::require_for(OutputFile const& file) const {
  auto const known = inputs_of_.find(file.name);
  if (known == inputs_of_.end()) return require_all();
  auto const pool = std::make_shared<FilePool>();
  for (auto const input : known->second) require(inputs_[input], *pool);
}

void UnchangedInputs::require(FileStamp const& input, FilePool& pool) const {
  std::error_code error;
  if (!std::filesystem::exists(input.path, error)) return;
  if (pool.open(input.path)->stamp() == input) return;
  throw FormatError({.operation = operation_,
                     .message = "a shard changed while it was read; nothing was published",
                     .resource = input.path,
                     .hint = "run again when no other program writes to the inputs",
                     .section = to_string(ErrorSection::files)});
}

}  // namespace crossrank::checkpoint
