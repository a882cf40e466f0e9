#pragma once
#include <optional>
#include <string>

#include <crossrank/json.hpp>

#include "lib/platform/files/directory.hpp"

namespace crossrank::checkpoint {

/// The folder in which output files are written before they are committed, and what it records about them.
class WorkFolder {
 public:
  virtual ~WorkFolder() = default;

  [[nodiscard]] virtual platform::Directory const& directory() const noexcept = 0;
  /// Returns the name of a file in the folder while it is written.
  [[nodiscard]] virtual std::string working_name(std::string const& name) const = 0;
  /// Returns the facts about a file that this job or a killed run of it has finished, or nothing.
  [[nodiscard]] virtual std::optional<Json> finished(std::string const& name) const = 0;
  /// Records that a file is durable and read back, with the facts about it that a later run needs.
  virtual void mark_finished(std::string const& name, Json const& facts) const = 0;

 protected:
  WorkFolder() = default;
  WorkFolder(WorkFolder const&) = default;
  WorkFolder& operator=(WorkFolder const&) = default;
  WorkFolder(WorkFolder&&) = default;
  WorkFolder& operator=(WorkFolder&&) = default;
};

}  // namespace crossrank::checkpoint
