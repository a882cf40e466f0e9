#pragma once

namespace CLI {
class App;
}

namespace crossrank::tools {

/// Adds the subcommand `crossrank run`. It sets `exit_code` when it runs.
void add_run_command(CLI::App& app, int& exit_code);

}  // namespace crossrank::tools
