#pragma once

namespace CLI {
class App;
}

namespace crossrank::tools {

/// Adds the subcommand `crossrank clean`. It sets `exit_code` when it runs.
void add_clean_command(CLI::App& app, int& exit_code);

}  // namespace crossrank::tools
