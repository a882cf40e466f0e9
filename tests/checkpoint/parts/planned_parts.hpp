#pragma once
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include <crossrank/checkpoint/parts.hpp>

#include "tests/checkpoint/write/interrupted.hpp"

namespace crossrank::test {

/// A model, an old checkpoint in its output directory, and plans of parts whose output files have at most 1100 bytes.
class PlannedParts : public Interrupted {
 protected:
  static constexpr int parts = 3;

  [[nodiscard]] std::filesystem::path plan_file() const { return folder_.path() / "plan.json"; }

  /// Makes and saves a plan.
  void save_plan(int count = parts, bool force = true,
                 checkpoint::OutputFormat format = checkpoint::OutputFormat::safetensors) const {
    checkpoint::PartsPlan::make(plan(), out(),
                                {.parts = count, .max_shard_bytes = 1100, .format = format, .force = force})
        .save(plan_file());
  }
  [[nodiscard]] checkpoint::PartsPlan load_plan() const { return checkpoint::PartsPlan::load(plan_file()); }
  /// Saves a plan and runs all of its parts.
  [[nodiscard]] checkpoint::PartsPlan run_all_parts(
      int count = parts, checkpoint::OutputFormat format = checkpoint::OutputFormat::safetensors) const {
    save_plan(count, true, format);
    auto loaded = load_plan();
    for (int part = 0; part < count; ++part) (void)checkpoint::consolidate_part(loaded, part);
    return loaded;
  }
  /// Returns a file in the plan's folder, or the folder itself.
  [[nodiscard]] std::filesystem::path in_plan_folder(std::string const& name = {}) const {
    return left_folder() / name;
  }
  /// Returns all files of a directory with their bytes.
  [[nodiscard]] static std::map<std::string, std::string> bytes_of(std::filesystem::path const& folder) {
    std::map<std::string, std::string> all;
    for (auto const& name : names_in(folder)) all[name] = text_of_file(folder / name);
    return all;
  }
  /// Changes one byte of a file and keeps its size.
  static void flip_last_byte(std::filesystem::path const& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-1, std::ios::end);
    auto const old = static_cast<char>(file.get());
    file.seekp(-1, std::ios::end).put(static_cast<char>(old ^ 1));
  }
};

}  // namespace crossrank::test
