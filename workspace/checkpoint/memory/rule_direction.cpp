#include "workspace/checkpoint/memory/rule_direction.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/model/error_sections.hpp"

namespace crossrank::checkpoint {
namespace {

/// Returns the rule for one of the layers that a rule makes of a fused layer, in the same direction.
Json rule_of_part(Json rule, std::size_t part) {
  rule["rename"] = Json(rule["rename"].at(part));
  rule.erase("layout");
  // A layer of one part needs no relative width.
  auto const width = rule.at("parts").at(part);
  rule.erase("parts");
  if (width.is_string()) rule["parts"] = Json::array({width});
  return rule;
}

/// Exchanges the pattern and the new name of a rule, if it has one.
void reverse(Json& rule, std::size_t number, std::string const& source) {
  auto const rename = rule.find("rename");
  if (rename == rule.end()) return;
  auto& pattern = rule.contains("layer") ? rule["layer"] : rule["tensor"];
  auto const old_name = pattern.get<std::string>();
  auto const new_name = rename->is_string() ? rename->get<std::string>() : rename->dump();
  bool const names_one =
      rename->is_string() && old_name.find("**") == std::string::npos && old_name.find('{') == std::string::npos &&
      std::count(old_name.begin(), old_name.end(), '*') == std::count(new_name.begin(), new_name.end(), '*');
  if (!names_one) {
    throw FormatError({.operation = "rule file",
                       .message = "rule " + std::to_string(number) + " cannot translate names backward",
                       .expected = "a pattern without ** and {a,b}, with as many * as its \"rename\"",
                       .got = "\"" + old_name + "\" for \"" + new_name + "\"",
                       .resource = source,
                       .hint = "write one rule for each name",
                       .section = to_string(ErrorSection::rules)});
  }
  *rename = old_name;
  pattern = new_name;
}

}  // namespace

RuleFile directed(RuleFile file, RuleDirection direction, std::string const& source) {
  if (direction == RuleDirection::forward) return file;
  auto json = Json::parse(file.text);
  auto const rules = json.find("rules");
  if (rules == json.end()) return file;
  Json reversed = Json::array();
  std::map<std::size_t, std::pair<std::size_t, std::size_t>> parts;  // of reversed rules: rule of the file and part
  for (std::size_t i = 0; i < rules->size(); ++i) {
    auto const& rule = (*rules)[i];
    auto const count = file.rules.at(i).part_names.size();
    for (std::size_t part = 0; part < std::max<std::size_t>(count, 1); ++part) {
      auto one = count > 0 ? rule_of_part(rule, part) : rule;
      reverse(one, i, source);
      if (count > 0) parts[reversed.size()] = {i, part};
      reversed.push_back(std::move(one));
    }
  }
  *rules = std::move(reversed);
  auto result = RuleFile::parse(json.dump(), source);
  for (auto const& [number, origin] : parts) {
    result.rules.at(number).fused = std::make_shared<LayerRule const>(file.rules.at(origin.first));
    result.rules.at(number).part = origin.second;
  }
  return result;
}

}  // namespace crossrank::checkpoint
