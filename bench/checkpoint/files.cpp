// Measures how one process opens and reads state images and torch archives, compared with plain reads of the same bytes
// into tensors of the same kind. The files stay in the page cache.
//
// Usage: bench_files --out FILE [--quick] FOLDER; also reads FOLDER/torch/rank_0_state.pth if it exists.
#include <cstring>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <crossrank/workspace/nfs_workspace.hpp>
#include <crossrank/safetensors.hpp>

#include "bench/harness/consume.h"
#include "bench/harness/harness.hpp"

namespace xr = crossrank;
namespace bench = crossrank::bench;
namespace fs = std::filesystem;

namespace {

constexpr std::int64_t tensors = 64;

/// Uses the same names, dtypes and number of dimensions for every size, so that headers differ only in digits.
xr::StateDict weights_of(std::size_t bytes) {
  xr::StateDict weights;
  auto const length = static_cast<std::int64_t>(bytes) / tensors / 2;
  for (std::int64_t i = 0; i < tensors; ++i) {
    auto tensor = xr::Tensor::empty({length}, xr::Dtype::bf16);
    bench_fill(tensor.mutable_bytes().data(), tensor.nbytes(), static_cast<int>(i));
    weights.insert_or_assign("transformer.layers." + std::to_string(i) + ".weight", std::move(tensor));
  }
  return weights;
}

fs::path image_in(fs::path const& folder) {
  for (auto const& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") return entry.path();
  }
  return {};
}

void require_equal(xr::StateDict const& read, xr::StateDict const& written) {
  bench::require(read.size() == written.size(), "tensors are missing");
  for (auto const& [name, tensor] : written) {
    auto const& other = read.at(name);
    bench::require(other.nbytes() == tensor.nbytes() &&
                       std::memcmp(other.bytes().data(), tensor.bytes().data(), tensor.nbytes()) == 0,
                   "wrong bytes in ", name);
  }
}

/// The limit: `pread` of the file's data into new tensors of the same sizes, without any check.
xr::StateDict plain_read(fs::path const& file, std::span<xr::SafetensorsEntry const> entries, std::size_t bytes) {
  xr::StateDict read;
  int const fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  auto at = static_cast<off_t>(fs::file_size(file) - bytes);
  for (auto const& entry : entries) {
    auto copy = xr::Tensor::empty(entry.shape, entry.dtype);
    auto const out = copy.mutable_bytes();
    for (std::size_t done = 0; done < out.size();) {
      auto const got = ::pread(fd, out.data() + done, out.size() - done, at);
      bench::require(got > 0, "cannot read the file");
      done += static_cast<std::size_t>(got);
      at += got;
    }
    read.insert_or_assign(entry.name, std::move(copy));
  }
  ::close(fd);
  return read;
}

bench::Row row_of(char const* variant, std::size_t bytes, char const* who = "crossrank") {
  bench::Row row{.path = "files", .who = who, .variant = variant, .ranks = 1, .bytes = bytes};
  return row;
}

class Files {
 public:
  explicit Files(bench::Arguments arguments) : arguments_(std::move(arguments)) {}

  void open(fs::path const& folder, std::size_t bytes) {
    xr::NFSWorkspace workspace(folder, {.rank = 0});
    workspace.write_configs_and_weights({{"layers", tensors}}, weights_of(bytes));
    auto const file = image_in(folder);
    auto row = row_of("open", bytes);
    measure(row, arguments_.quick ? 200 : 1000, [&] {
      xr::SafetensorsFile const opened(file);
      bench::require(opened.entries().size() == tensors, "entries are missing");
    });
  }

  /// Measures our read and the limit in turn, with the same amount of work.
  void read(fs::path const& folder, std::size_t bytes) {
    xr::NFSWorkspace workspace(folder, {.rank = 0});
    auto const written = weights_of(bytes);
    workspace.write_configs_and_weights({{"layers", tensors}}, written);
    auto const file = image_in(folder);
    require_equal(workspace.read_configs_and_weights_from_rank(0).value().weights, written);
    xr::SafetensorsFile const opened(file);
    require_equal(plain_read(file, opened.entries(), bytes), written);
    std::size_t const samples = arguments_.quick ? 5 : 15;
    auto ours = row_of("read", bytes);
    auto limit = row_of("read", bytes, "pread_limit");
    measure(ours, samples, [&] { (void)workspace.read_configs_and_weights_from_rank(0); });
    measure(limit, samples, [&] { (void)plain_read(file, opened.entries(), bytes); });
  }

  void torch(fs::path const& folder) {
    auto const workspace = xr::NFSWorkspace::open(folder);
    auto const first = workspace.read_configs_and_weights_from_rank(0).value();
    bench::require(first.weights.size() == tensors, "tensors are missing");
    for (auto const& [name, tensor] : first.weights) {
      auto const number = first.config.at("first").at(name).get<int>();
      bench::require(tensor.as<std::int16_t>()[0] == number, "wrong bytes in ", name);
    }
    auto row = row_of("torch archive", first.weights.nbytes());
    measure(row, arguments_.quick ? 3 : 7, [&] { (void)workspace.read_configs_and_weights_from_rank(0); });
  }

 private:
  void measure(bench::Row& row, std::size_t samples, std::function<void()> const& call) {
    call();
    bench::measure(row, meter_, samples, 1, 0, [&](std::uint64_t) { call(); });
    bench::append(arguments_.out, {row});
  }

  bench::Arguments arguments_;
  bench::UsageMeter meter_{};
};

}  // namespace

int main(int argc, char** argv) {
  // The allocator may or may not return memory that was touched before. Take it from the system for every contestant,
  // as in a program that reads a state once.
  mallopt(M_MMAP_THRESHOLD, 1 << 16);
  auto const arguments = bench::parse(argc - 1, argv);
  fs::path const folder = argv[argc - 1];
  Files files(arguments);
  files.open(folder / "small", std::size_t{1} << 20);
  files.open(folder / "large", std::size_t{1} << 30);
  fs::remove_all(folder / "large");
  files.read(folder / "read", arguments.quick ? std::size_t{64} << 20 : std::size_t{256} << 20);
  if (fs::exists(folder / "torch")) files.torch(folder / "torch");
}
