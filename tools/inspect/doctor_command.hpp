#pragma once

namespace CLI {
class App;
}

namespace crossrank::tools {

/// Adds the subcommand `crossrank doctor`. It sets `exit_code` when it runs.
void add_doctor_command(CLI::App& app, int& exit_code);

}  // namespace crossrank::tools
