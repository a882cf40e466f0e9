#pragma once

namespace CLI {
class App;
}

namespace crossrank::tools {

/// Adds `crossrank split` to the command; `exit_code` receives what it returns.
void add_split_command(CLI::App& app, int& exit_code);

}  // namespace crossrank::tools
