#include "tools/cli/option_flags.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace crossrank::tools {
namespace {

struct OptionFlag {
  std::string_view option;  ///< name of a field in the library's options
  std::string_view flag;
};

constexpr std::array flags{
    OptionFlag{"tp", "--tp"},
    OptionFlag{"pp", "--pp"},
    OptionFlag{"ep", "--ep"},
    OptionFlag{"moe_ep", "--moe-ep"},
    OptionFlag{"pattern", "--pattern"},
    OptionFlag{"model_key", "--model-key"},
    OptionFlag{"extra_globals", "--allow-global"},
    OptionFlag{"fused_layout", "--fused-layout"},
    OptionFlag{"rules", "--rules"},
    OptionFlag{"policy", "--policy"},
    OptionFlag{"force", "--force"},
    OptionFlag{"all", "--all"},
    OptionFlag{"resume", "--resume"},
    OptionFlag{"max_shard_bytes", "--max-shard-size"},
    OptionFlag{"plan", "--plan"},
    OptionFlag{"part", "--part"},
};

}  // namespace

std::string with_flags(std::string_view text) {
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
      out.append(found->flag);
      text.remove_prefix(found->option.size() + 2);
    } else if (!text.empty()) {
      out += text.front();
      text.remove_prefix(1);
    }
  }
  return out;
}

Json json_with_flags(Json value) {
  if (value.is_string()) return with_flags(std::string_view(value.get_ref<std::string const&>()));
  if (value.is_structured()) {
    for (auto& part : value) part = json_with_flags(std::move(part));
  }
  return value;
}

}  // namespace crossrank::tools
