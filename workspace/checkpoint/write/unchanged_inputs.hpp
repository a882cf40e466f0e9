#pragma once
#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "workspace/checkpoint/source/file_pool.hpp"
#include "workspace/checkpoint/write/output_layout.hpp"

namespace crossrank::checkpoint {

/// Detects inputs that change while a job reads them. The result would be a mixture of old and new data, which
/// checksums cannot detect.
///
/// A check opens each input again, because NFS shows the current size and time of a file only after an open.
/// Thread-safe.
class UnchangedInputs {
 public:
  /// `inputs` are the stamps of the inputs, taken when they were opened; `operation` is for messages.
  UnchangedInputs(std::string operation, std::vector<FileStamp> inputs)
      : operation_(std::move(operation)), inputs_(std::move(inputs)) {}

  /// Throws `FormatError` if an input has changed since it was opened. A removed input is no error, because it has been
  /// read completely.
  void require_all() const;

  /// Finds out which inputs the files need. Costs one `files_of` for each tensor.
  void assign_to(std::span<OutputFile const> files);
  /// Like `require_all`, for the inputs of one of these files and those that no file needs, such as a config. Checks
  /// all inputs if the file's source does not know where its data is.
  void require_for(OutputFile const& file) const;

 private:
  void require(FileStamp const& input, FilePool& pool) const;

  std::string operation_;
  std::vector<FileStamp> inputs_;
  std::map<std::string, std::vector<std::size_t>, std::less<>> inputs_of_{};  ///< by the name of the file
};

}  // namespace crossrank::checkpoint
