#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include <crossrank/error.hpp>

#include "lib/codec/json/python_json.hpp"
#include "workspace/checkpoint/parts/json_checksum.hpp"
#include "workspace/checkpoint/parts/plan_file.hpp"

namespace {

using namespace crossrank::checkpoint;

/// Stops the program if a part could write outside of the output, or two parts the same file.
void require_safe(PlanFile const& plan) {
  std::set<std::string> names;
  for (auto const& file : plan.files) {
    bool const is_plain = !file.name.empty() && file.name.front() != '.' && file.name.find('/') == std::string::npos;
    bool const has_part = file.part >= 0 && file.part < plan.options.parts;
    if (!is_plain || !has_part || !names.insert(file.name).second) __builtin_trap();
  }
  if (!plan.out.is_absolute()) __builtin_trap();
}

}  // namespace

/// Reads any bytes as a plan of parts, with the checksum that fits them. They are refused with a `FormatError`, or the
/// plan is safe, and its own text gives the same plan.
extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace crossrank;
  std::string_view const text(reinterpret_cast<char const*>(data), size);
  try {
    auto json = codec::parse_python_json(text, {.limits = codec::listing_limits, .about = {.section = "json"}});
    if (!json.is_object()) return 0;
    json["checksum"] = json_checksum(json);
    auto const plan = parse_plan(json, "fuzz");
    require_safe(plan);
    auto const written = to_text(plan);
    if (to_text(parse_plan(Json::parse(written), "fuzz")) != written) __builtin_trap();
  } catch (FormatError const& e) {
    if (e.section().empty()) __builtin_trap();
  }
  return 0;
}
