#include "workspace/checkpoint/memory/rule_direction.hpp"

#include <algorithm>
#include <utility>

#include <crossrank/error.hpp>

namespace crossrank::checkpoint {
namespace {

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
    throw FormatError(
        {.operation = "rule file",
         .message = "rule " + std::to_string(number) + " cannot translate names backward",
         .expected = "a pattern without ** and {a,b}, with as many * as its \"rename\"",
         .got = "\"" + old_name + "\" for \"" + new_name + "\"",
         .resource = source,
         .hint = "write one rule for each name; layers that a rule fuses or separates cannot be translated backward",
         .section = "rules"});
  }
  *rename = old_name;
  pattern = new_name;
}

}  // namespace

RuleFile directed(RuleFile file, RuleDirection direction, std::string const& source) {
  if (direction == RuleDirection::forward) return file;
  auto json = Json::parse(file.text);
  auto const rules = json.find("rules");
  if (rules != json.end()) {
    for (std::size_t i = 0; i < rules->size(); ++i) reverse((*rules)[i], i, source);
  }
  return RuleFile::parse(json.dump(), source);
}

}  // namespace crossrank::checkpoint
