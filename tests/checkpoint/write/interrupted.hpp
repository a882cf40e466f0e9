#pragma once
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/safetensors.hpp>

#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/support/process_ranks.hpp"
#include "tests/support/temporary_directory.hpp"

namespace crossrank::test {

/// Returns the options of the scenario "consolidate_until". Calls with equal options are the same job.
inline checkpoint::ConsolidateOptions options_for(std::string const& format) {
  checkpoint::ConsolidateOptions options{.max_shard_bytes = 1100, .force = true};
  if (format == "torch") options.format = checkpoint::OutputFormat::torch;
  return options;
}

/// A model, and an old checkpoint in its output directory.
class Interrupted : public testing::Test {
 protected:
  Interrupted() {
    std::filesystem::create_directories(in());
    save_safetensors(in() / "model.safetensors", sample_weights(4, 16, 16, 1));
    std::ofstream(in() / "config.json") << R"({"num_hidden_layers": 4})";
    std::ofstream(in() / "tokenizer.json") << "{}";
    put_old();
    old_ = read_checkpoint(out(), true);
    new_ = read_model(in());
  }

  void put_old() const {
    std::filesystem::remove_all(out());
    std::filesystem::create_directories(out());
    save_safetensors(out() / "model.safetensors", sample_weights(2, 8, 8, 2));
    std::ofstream(out() / "config.json") << R"({"num_hidden_layers": 2})";
  }

  [[nodiscard]] std::filesystem::path in() const { return folder_.path() / "in"; }
  [[nodiscard]] std::filesystem::path out() const { return folder_.path() / "out"; }
  [[nodiscard]] checkpoint::MergePlan plan() const { return checkpoint::MergePlan::make(world_, in()); }

  /// Returns which checkpoint the output has: "old", "new", "none" or "a mixture".
  [[nodiscard]] std::string state() const {
    auto const found = read_checkpoint(out(), true);
    if (found.empty()) return "none";
    if (found == old_) return "old";
    return found == new_ ? "new" : "a mixture";
  }

  /// Merges in another process, which is killed at the given visit of a crash point.
  void kill_at(std::string const& point, int visit, std::string const& format = "safetensors") const {
    auto const killed =
        run_ranks(1, "consolidate_until", {.arguments = {in(), out(), point, std::to_string(visit), format}});
    ASSERT_EQ(killed.ranks.at(0).signal, SIGKILL) << killed.text();
  }

  /// Returns the folder that a killed job left; empty if there is none.
  [[nodiscard]] std::filesystem::path left_folder() const {
    for (auto const& name : names_in(out())) {
      if (name.starts_with(".crossrank-")) return out() / name;
    }
    return {};
  }

  TemporaryDirectory folder_{};
  Collective world_ = connect({.backend = "fake"});
  ModelBytes old_{};
  ModelBytes new_{};
};

}  // namespace crossrank::test
