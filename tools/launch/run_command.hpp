#pragma once

namespace CLI {
class App;
}

namespace crossrank::tools {

/// Adds `crossrank run` to the command; `exit_code` receives what it returns.
void add_run_command(CLI::App& app, int& exit_code);

}  // namespace crossrank::tools
