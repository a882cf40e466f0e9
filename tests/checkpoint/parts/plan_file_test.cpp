// Plan files that are damaged, from another version, or hostile.
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint/parts.hpp>
#include <crossrank/error.hpp>

#include "lib/codec/checksum/checksum.hpp"
#include "tests/checkpoint/parts/planned_parts.hpp"
#include "tests/checkpoint/support/checkpoint_files.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;
using test::names_in;
using test::text_of_file;
using testing::StartsWith;

class PlanFile : public test::PlannedParts {
 protected:
  PlanFile() {
    save_plan();
    before_ = names_in(folder_.path());
  }

  [[nodiscard]] Json read() const { return Json::parse(text_of_file(plan_file())); }
  /// Writes a plan with the checksum that fits it, as somebody who wants to deceive us would.
  void write(Json plan) const {
    plan.erase("checksum");
    auto const text = plan.dump();
    plan["checksum"] = codec::to_hex(codec::checksum(std::as_bytes(std::span(text))));
    std::ofstream(plan_file()) << plan.dump();
  }
  /// Returns the section of the `FormatError` that loading, or comparing with the inputs, throws.
  [[nodiscard]] std::string refused_section() const {
    try {
      (void)load_plan().merge_plan();
      ADD_FAILURE() << "loaded";
    } catch (FormatError const& error) {
      EXPECT_EQ(error.info().resource, plan_file().string());
      EXPECT_FALSE(error.info().hint.empty());
      EXPECT_EQ(names_in(folder_.path()), before_) << "nothing was made";
      return std::string(error.section());
    }
    return {};
  }

  std::vector<std::string> before_{};
};

TEST_F(PlanFile, is_loaded_as_it_was_written) {
  write(read());
  EXPECT_EQ(load_plan().parts(), parts);
  EXPECT_EQ(load_plan().out(), out());
}

TEST_F(PlanFile, that_does_not_exist_is_an_io_error) {
  fs::remove(plan_file());
  EXPECT_THROW((void)load_plan(), IoError);
}

TEST_F(PlanFile, with_a_changed_character_is_refused) {
  auto const text = text_of_file(plan_file());
  for (std::size_t at = 0; at < text.size(); at += 7) {
    auto changed = text;
    changed[at] = changed[at] == '1' ? '2' : '1';
    if (changed == text || std::isspace(static_cast<unsigned char>(text[at])) != 0) continue;
    std::ofstream(plan_file()) << changed;
    EXPECT_THROW((void)load_plan(), FormatError) << "at byte " << at;
  }
}

TEST_F(PlanFile, that_is_truncated_is_refused) {
  auto const text = text_of_file(plan_file());
  for (auto const size : {std::size_t{0}, std::size_t{1}, text.size() / 2, text.size() - 3}) {
    std::ofstream(plan_file()) << text.substr(0, size);
    EXPECT_THROW((void)load_plan(), FormatError) << size;
  }
}

TEST_F(PlanFile, without_any_one_of_its_fields_is_refused) {
  auto const plan = read();
  for (auto const& [name, value] : plan.items()) {
    if (name == "checksum") continue;
    auto changed = plan;
    changed.erase(name);
    write(changed);
    EXPECT_EQ(refused_section(), name);
  }
  for (auto const& [name, value] : plan.at("inputs").items()) {
    auto changed = plan;
    changed["inputs"].erase(name);
    write(changed);
    EXPECT_EQ(refused_section(), "inputs." + name);
  }
  for (auto const* const list : {"stamps", "files"}) {
    for (auto const& [name, value] : plan.at(list).at(0).items()) {
      auto changed = plan;
      changed[list][0].erase(name);
      write(changed);
      EXPECT_EQ(refused_section(), std::string(list) + "." + name);
    }
  }
}

TEST_F(PlanFile, with_a_field_of_another_type_is_refused) {
  auto const plan = read();
  for (auto const& wrong : {Json(nullptr), Json(-1.5), Json::array({1}), Json{{"a", 1}}}) {
    for (auto const& [name, value] : plan.items()) {
      if (name == "checksum" || value.type() == wrong.type()) continue;
      auto changed = plan;
      changed[name] = wrong;
      write(changed);
      EXPECT_EQ(refused_section().substr(0, name.size()), name) << wrong;
    }
    for (auto const& [name, value] : plan.at("inputs").items()) {
      if (value.type() == wrong.type() && name != "extra_globals") continue;
      auto changed = plan;
      changed["inputs"][name] = wrong;
      write(changed);
      EXPECT_THAT(refused_section(), StartsWith("inputs")) << name << wrong;
    }
  }
}

struct Attack {
  char const* name;
  std::function<void(Json&)> change;
  char const* section;
};

class HostilePlan : public PlanFile, public testing::WithParamInterface<Attack> {};

TEST_P(HostilePlan, is_refused) {
  auto plan = read();
  GetParam().change(plan);
  write(plan);
  EXPECT_EQ(refused_section(), GetParam().section);
}

std::vector<Attack> attacks() {
  auto const file_name = [](std::string name) {
    return [name = std::move(name)](Json& plan) { plan["files"][0]["name"] = name; };
  };
  auto const set = [](char const* field, Json value) {
    return [field, value = std::move(value)](Json& plan) { plan[field] = value; };
  };
  return {
      {"another_format", set("format", "crossrank merge plan"), "format"},
      {"a_newer_version", set("version", 4), "version"},
      {"an_older_version", set("version", 2), "version"},
      {"version_0", set("version", 0), "version"},
      {"an_unknown_field", set("run", "rm -rf /"), "run"},
      {"an_unknown_field_without_a_name", set("", 0), "\"\""},
      {"an_unknown_field_of_a_file", [](Json& plan) { plan["files"][0]["mode"] = 511; }, "files.mode"},
      {"no_parts", set("parts", 0), "parts"},
      {"negative_parts", set("parts", -3), "parts"},
      {"too_many_parts", set("parts", 100'001), "parts"},
      {"parts_beyond_64_bits", set("parts", 1e30), "parts"},
      {"a_part_that_does_not_exist", [](Json& plan) { plan["files"][0]["part"] = 3; }, "files.part"},
      {"a_file_in_another_part",
       [](Json& plan) { plan["files"][0]["part"] = (plan["files"][0]["part"].get<int>() + 1) % 3; }, "files"},
      {"a_file_of_another_size", [](Json& plan) { plan["files"][0]["bytes"] = 1; }, "files"},
      {"a_file_beyond_63_bits", [](Json& plan) { plan["files"][0]["bytes"] = ~std::uint64_t{0}; }, "files.bytes"},
      {"a_file_less", [](Json& plan) { plan["files"].erase(plan["files"].begin()); }, "files"},
      {"a_file_more",
       [](Json& plan) {
         auto file = plan["files"][0];
         file["name"] = "x";
         plan["files"].push_back(file);
       },
       "files"},
      {"a_file_twice", [](Json& plan) { plan["files"].push_back(plan["files"][0]); }, "files.name"},
      {"another_file_name", file_name("other.safetensors"), "files"},
      {"an_empty_file_name", file_name(""), "files.name"},
      {"an_absolute_file_name", file_name("/etc/passwd"), "files.name"},
      {"a_file_name_above_the_output", file_name("../../escaped.safetensors"), "files.name"},
      {"a_file_name_in_a_folder", file_name("a/b.safetensors"), "files.name"},
      {"dot_dot_as_file_name", file_name(".."), "files.name"},
      {"the_lock_as_file_name", file_name(".lock"), "files.name"},
      {"the_commit_record_as_file_name", file_name(".committing"), "files.name"},
      {"a_file_name_with_a_zero_byte", file_name(std::string("a\0b", 3)), "files.name"},
      {"a_file_name_of_10000_characters", file_name(std::string(10'000, 'a')), "files.name"},
      {"a_recipe_beyond_63_bits", [](Json& plan) { plan["files"][0]["recipe_begin"] = ~std::uint64_t{0}; },
       "files.recipe_begin"},
      {"a_recipe_of_a_gigabyte", [](Json& plan) { plan["files"][0]["recipe_bytes"] = 1 << 30; }, "files.recipe_bytes"},
      {"a_recipe_without_a_checksum", [](Json& plan) { plan["files"][0]["recipe_checksum"] = ""; },
       "files.recipe_checksum"},
      {"a_relative_output", set("out", "out"), "out"},
      {"an_empty_output", set("out", ""), "out"},
      {"an_output_with_a_zero_byte", set("out", std::string("/tmp/a\0b", 8)), "out"},
      {"relative_shards", [](Json& plan) { plan["inputs"]["path"] = "../in"; }, "inputs.path"},
      {"relative_rules", [](Json& plan) { plan["inputs"]["rules"] = "rules.json"; }, "inputs.rules"},
      {"an_unknown_policy", [](Json& plan) { plan["inputs"]["policy"] = 3; }, "inputs"},
      {"an_unknown_format", set("output_format", 3), "output_format"},
      {"a_relative_input", [](Json& plan) { plan["stamps"][0]["path"] = "config.json"; }, "stamps.path"},
      {"an_input_of_another_size", [](Json& plan) { plan["stamps"][0]["size"] = 1; }, "stamps"},
      {"an_input_of_another_time", [](Json& plan) { plan["stamps"][0]["changed"] = 1; }, "stamps"},
      {"a_time_beyond_63_bits", [](Json& plan) { plan["stamps"][0]["changed"] = ~std::uint64_t{0}; }, "stamps.changed"},
      {"an_input_less", [](Json& plan) { plan["stamps"].erase(plan["stamps"].begin()); }, "stamps"},
      {"another_hash", set("merge_hash", "0123456789abcdef"), "merge_hash"},
      {"a_hash_of_other_digits", set("merge_hash", "0123456789abcdeg"), "merge_hash"},
      {"another_limit_of_file_sizes", set("max_shard_bytes", 5'000'000), "files"},
  };
}

INSTANTIATE_TEST_SUITE_P(All, HostilePlan, testing::ValuesIn(attacks()),
                         [](auto const& tested) { return std::string(tested.param.name); });

TEST_F(PlanFile, nested_deeply_is_refused) {
  std::ofstream(plan_file()) << std::string(100'000, '[');
  EXPECT_THROW((void)load_plan(), FormatError);
}

}  // namespace
}  // namespace crossrank
