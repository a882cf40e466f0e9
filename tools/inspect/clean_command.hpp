#pragma once

namespace CLI {
class App;
}

namespace crossrank::tools {

/// Adds `crossrank clean` to the command; `exit_code` receives what it returns.
void add_clean_command(CLI::App& app, int& exit_code);

}  // namespace crossrank::tools
