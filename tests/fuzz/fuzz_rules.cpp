#include <cstddef>
#include <cstdint>
#include <string_view>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/rules/rule_file.hpp"

/// Reads any bytes as a rule file. They are refused with a `FormatError`, or its patterns can be matched with any name,
/// including the text of the file.
extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace crossrank::checkpoint;
  std::string_view const text(reinterpret_cast<char const*>(data), size);
  try {
    auto const file = RuleFile::parse(text, "fuzz");
    if (file.rules.size() > 10'000 || file.text != text) __builtin_trap();
    for (auto const& rule : file.rules) {
      for (auto const name : {std::string_view("model.layers.11.mlp.experts.3.gate_proj"), text.substr(0, 200)}) {
        if (rule.pattern.matches(name)) (void)fill_numbers(rule.pattern.text(), name);
      }
      if (!rule.pattern.matches(rule.pattern.text()) && rule.pattern.text().find_first_of("*{") == std::string::npos)
        __builtin_trap();
    }
  } catch (crossrank::FormatError const& e) {
    if (e.section().empty()) __builtin_trap();
  }
  return 0;
}
