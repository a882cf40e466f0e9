#include "workspace/nfs/state_file.hpp"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/codec/safetensors/image_writer.hpp"
#include "lib/core/environment.hpp"
#include "lib/platform/files/atomic_file.hpp"
#include "workspace/nfs/writer_lock.hpp"

namespace crossrank::workspace {
namespace {

/// Bytes per read or write, so that a large transfer reports progress often enough.
constexpr std::size_t piece_bytes = std::size_t{16} << 20;

/// Merges small neighbouring writes, so that ten thousand scalars do not cost ten thousand system calls.
class GatheringSink final : public codec::ByteSink {
 public:
  GatheringSink(platform::AtomicFile& file, OnProgress const& on_progress) : file_(file), on_progress_(on_progress) {}

  void write_at(std::uint64_t offset, std::span<std::byte const> from) override {
    if (from.size() >= small || offset != gathered_at_ + gathered_.size() || gathered_.size() + from.size() > capacity)
      flush();
    if (from.size() >= small) {
      write_pieces(offset, from);
      return;
    }
    if (gathered_.empty()) gathered_at_ = offset;
    gathered_.insert(gathered_.end(), from.begin(), from.end());
  }

  void flush() {
    if (!gathered_.empty()) write_pieces(gathered_at_, gathered_);
    gathered_.clear();
  }

 private:
  static constexpr std::size_t small = std::size_t{64} << 10;
  static constexpr std::size_t capacity = std::size_t{1} << 20;

  void write_pieces(std::uint64_t offset, std::span<std::byte const> from) {
    for (std::size_t done = 0; done < from.size(); done += piece_bytes) {
      file_.write_at(offset + done, from.subspan(done, std::min(piece_bytes, from.size() - done)));
      if (on_progress_) on_progress_();
    }
  }

  platform::AtomicFile& file_;
  OnProgress const& on_progress_;
  std::vector<std::byte> gathered_{};
  std::uint64_t gathered_at_ = 0;
};

/// An open file that reports progress while it is read.
class SteppingSource final : public codec::ByteSource {
 public:
  SteppingSource(std::string const& path, int fd, OnProgress on_progress)
      : file_(path, fd), on_progress_(std::move(on_progress)) {}
  [[nodiscard]] std::string const& name() const noexcept override { return file_.name(); }
  [[nodiscard]] std::uint64_t size() const noexcept override { return file_.size(); }
  /// The progress callback must run in the reading thread; a thread that waits for helper threads would report nothing.
  [[nodiscard]] bool wants_one_reader() const noexcept override { return on_progress_ != nullptr; }
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override {
    for (std::size_t done = 0; done < to.size(); done += piece_bytes) {
      file_.read_at(offset + done, to.subspan(done, std::min(piece_bytes, to.size() - done)));
      if (on_progress_) on_progress_();
    }
  }

 private:
  codec::FileSource file_;
  OnProgress on_progress_;
};

/// Returns the header's own checksum. The codec has already verified it.
std::uint64_t header_digest(std::string const* digits, std::string const& path) {
  auto const digest = digits != nullptr ? codec::from_hex(*digits) : std::nullopt;
  if (digest) return *digest;
  throw FormatError(ErrorInfo{.operation = "NFSWorkspace.read",
                              .message = "the header has no checksum",
                              .resource = path,
                              .section = "header"});
}

std::uint64_t digest_of(std::span<std::byte const> header, std::string const& path) {
  auto const at = codec::find_header_checksum(header);
  if (!at) return header_digest(nullptr, path);
  std::string const digits(reinterpret_cast<char const*>(header.data()) + *at, codec::checksum_digits);
  return header_digest(&digits, path);
}

codec::ImageOptions image_options(StateFileName const& file) {
  auto const& self = environment();
  return {.identity = {.rank = file.rank,
                       .world_size = self.world_size,
                       .job = self.job_id,
                       .writer = file.writer,
                       .sequence = file.counter}};
}

}  // namespace

LockedStateFile write_state_file(platform::Directory const& directory, StateFileName const& file, Json const& config,
                                 StateDict const& weights, OnProgress const& on_progress) {
  codec::ImagePlan plan(config, weights, image_options(file));
  platform::AtomicFile out(directory, file.name(), plan.file_bytes(), "NFSWorkspace.write");
  GatheringSink sink(out, on_progress);
  if (on_progress) on_progress();  // before the weights are read
  codec::write_image(plan, sink);
  sink.flush();
  // `commit` closes the file and so releases its lock. Without a second lock, a concurrent `crossrank clean` would take
  // the file for that of a dead writer. The bridge is released once the final name is locked, because NFS keeps a
  // removed temporary while it is open.
  auto bridge = lock_file_shared(directory, out.temporary_name());
  out.commit();
  auto file_lock = lock_file_shared(directory, file.name());
  bridge = platform::Fd();
  return {.published = {.file = file,
                        .bytes = plan.file_bytes(),
                        .digest = digest_of(plan.sealed_header(), directory.path_of(file.name()))},
          .file_lock = std::move(file_lock)};
}

StateFileReader::StateFileReader(platform::Fd fd, StateFileName const& file, std::string const& path,
                                 OnProgress on_progress)
    : fd_(std::move(fd)),
      image_(codec::StateImage::open(std::make_shared<SteppingSource>(path, fd_.get(), std::move(on_progress)))),
      identity_{.file = file} {
  auto const& header = image_.header();
  identity_.bytes = header.data_start + header.data_bytes;
  identity_.digest = header_digest(header.find_metadata(codec::metadata_key::header_checksum), path);
}

}  // namespace crossrank::workspace
