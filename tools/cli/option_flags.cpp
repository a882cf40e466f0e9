#include "tools/cli/option_flags.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace crossrank::tools {
namespace {

struct OptionFlag {
  std::string_view option;  ///< name of a field in the library's options
  std::string_view flag;
  std::string_view input_flag = flag;  ///< flag of a command that also has this option for the result
};

constexpr std::array flags{
    OptionFlag{"tp", "--tp", "--from-tp"},
    OptionFlag{"pp", "--pp", "--from-pp"},
    OptionFlag{"ep", "--ep", "--from-ep"},
    OptionFlag{"moe_ep", "--moe-ep", "--from-moe-ep"},
    OptionFlag{"pattern", "--pattern"},
    OptionFlag{"model_key", "--model-key"},
    OptionFlag{"extra_globals", "--allow-global"},
    OptionFlag{"fused_layout", "--fused-layout"},
    OptionFlag{"rules", "--rules"},
    OptionFlag{"policy", "--policy"},
    OptionFlag{"crc", "--crc"},
    OptionFlag{"force", "--force"},
    OptionFlag{"all", "--all"},
    OptionFlag{"resume", "--resume"},
    OptionFlag{"max_shard_bytes", "--max-shard-size"},
    OptionFlag{"plan", "--plan"},
    OptionFlag{"part", "--part"},
};

constexpr std::string_view of_the_result = " of the result";

}  // namespace

std::string with_flags(std::string_view text, std::string_view command) {
  bool const two_grids = command == "split" || command == "convert";
  std::string out;
  while (!text.empty()) {
    auto const mark = std::min(text.find('`'), text.size());
    out.append(text.substr(0, mark));
    text.remove_prefix(mark);
    auto const found = std::find_if(flags.begin(), flags.end(), [&](OptionFlag const& known) {
      auto const end = known.option.size() + 1;
      return text.size() > end && text[end] == '`' && text.substr(1).starts_with(known.option);
    });
    if (found != flags.end()) {
      text.remove_prefix(found->option.size() + 2);
      bool const is_output = text.starts_with(of_the_result);
      out.append(two_grids && !is_output ? found->input_flag : found->flag);
      if (is_output) text.remove_prefix(of_the_result.size());
    } else if (!text.empty()) {
      out += text.front();
      text.remove_prefix(1);
    }
  }
  return out;
}

Json json_with_flags(Json value, std::string_view command) {
  if (value.is_string()) return with_flags(value.get_ref<std::string const&>(), command);
  if (value.is_structured()) {
    for (auto& part : value) part = json_with_flags(std::move(part), command);
  }
  return value;
}

}  // namespace crossrank::tools
