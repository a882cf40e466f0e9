#pragma once

namespace crossrank::tools {

/// Opens /dev/null as each standard stream that this process lacks. Otherwise a file that it opens, or the pipe of a
/// rank, would take the place of the stream.
void open_missing_standard_streams();

}  // namespace crossrank::tools
