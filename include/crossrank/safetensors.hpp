#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <crossrank/tensor/dtype.hpp>
#include <crossrank/export.hpp>
#include <crossrank/tensor/shape.hpp>
#include <crossrank/state.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank {

/// The entry of one tensor in the header of a safetensors file.
struct SafetensorsEntry {
  std::string name{};       ///< its name in the file
  Dtype dtype = Dtype::u8;  ///< its element type
  Shape shape{};            ///< its dimensions
};

/// A safetensors file of any origin, opened for reading. The constructor reads and checks the whole header; data is
/// read on request.
///
/// Local. Copies share the open file. Symbolic links are followed, because model caches consist of them.
class CROSSRANK_EXPORT SafetensorsFile {
 public:
  /// Opens a file. The cost is proportional to its header. `IoError` when the system refuses, `FormatError` when the
  /// file is not in the safetensors format.
  explicit SafetensorsFile(std::filesystem::path path);

  /// Returns the file's path.
  [[nodiscard]] std::filesystem::path const& path() const noexcept;
  /// Returns the tensors, in the order of their data.
  [[nodiscard]] std::span<SafetensorsEntry const> entries() const noexcept;
  /// Returns the tensor called `name`, or null.
  [[nodiscard]] SafetensorsEntry const* find(std::string_view name) const noexcept;
  /// Returns the free-text metadata of the file, in its order.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> const& metadata() const noexcept;

  /// Reads one tensor into memory of its own. One copy; verified if the file has crossrank's checksums, with a
  /// `FormatError` on a difference. `UsageError` for an unknown name.
  [[nodiscard]] Tensor read(std::string_view name) const;
  /// Returns a read-only view of one tensor in the mapped file. Copies nothing and reads nothing before the bytes are
  /// used, and so verifies nothing. The view keeps the file mapped.
  ///
  /// A file that is truncated while it is mapped ends the process by SIGBUS: do not map files that others may write.
  /// The first call maps the whole file; `IoError` when the system refuses. `UsageError` for an unknown name.
  [[nodiscard]] Tensor map(std::string_view name) const;
  /// Reads `length` entries of dimension `dim`, from `begin` on.
  ///
  /// Allocates memory for the slice, and at most 1 MiB more. Reads only the slice along dimension 0, and along other
  /// dimensions if a row has more than 1 MiB. Otherwise reads whole rows, block by block. Not verified. `UsageError`
  /// when name, dimension or range does not exist, or when the slice begins or ends inside a byte.
  [[nodiscard]] Tensor read_slice(std::string_view name, Dim dim, std::int64_t begin, std::int64_t length) const;

 private:
  struct State;
  std::shared_ptr<State const> state_;
};

/// Options of `save_safetensors`.
struct SafetensorsOptions {
  /// Free-text metadata of the file. Most loaders expect the key "format" with the framework.
  std::vector<std::pair<std::string, std::string>> metadata{{"format", "pt"}};
  /// Whether an existing file is replaced. It stays complete until the new one is, and tensors that view it stay valid.
  bool force = false;
};

/// Reads all tensors of a file, in the order of its data. Local; costs and errors as for `SafetensorsFile::read`.
[[nodiscard]] CROSSRANK_EXPORT StateDict load_safetensors(std::filesystem::path const& path);

/// Writes a file, which appears under its name complete and durable or not at all.
///
/// Local; copies each byte once, into the file. The bytes equal those of the format's reference implementation.
/// The folder may belong to others or be writable by others, who can then replace the file. A symbolic link of another
/// user in the path is followed only into a folder of that user.
///
/// `UsageError` for an undefined tensor, one that is not on the CPU, names that the format does not allow, metadata
/// that marks a state image, a path without a file name, the name of a workspace's state file, and more than 1,000,000
/// tensors or 100,000,000 bytes of header. `IoError` before anything is written when a file with that name exists,
/// unless `force` is set. `IoError` when writing fails; it then gives the bytes written and the free space, and no file
/// is left.
CROSSRANK_EXPORT void save_safetensors(std::filesystem::path const& path, StateDict const& weights,
                                       SafetensorsOptions const& options = {});

}  // namespace crossrank
