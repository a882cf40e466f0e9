#pragma once

namespace CLI {
class App;
}

namespace crossrank::tools {

/// Adds `crossrank consolidate` to the command; `exit_code` receives what it returns.
void add_consolidate_command(CLI::App& app, int& exit_code);

}  // namespace crossrank::tools
