#pragma once

namespace CLI {
class App;
}

namespace crossrank::tools {

/// Adds `crossrank plan` to the command; `exit_code` receives what it returns.
void add_plan_command(CLI::App& app, int& exit_code);

}  // namespace crossrank::tools
