// Writes and reads a state file in one process, compared with plain reads of the same bytes. The file stays in the page
// cache.
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <benchmark/benchmark.h>

#include <crossrank/workspace/nfs_workspace.hpp>
#include <crossrank/safetensors.hpp>

#include "bench/harness/consume.h"

namespace xr = crossrank;
namespace fs = std::filesystem;

namespace {

class Folder {
 public:
  Folder() {
    auto name = (fs::temp_directory_path() / "crossrank-bench-XXXXXX").string();
    if (::mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  Folder(Folder const&) = delete;
  Folder& operator=(Folder const&) = delete;
  [[nodiscard]] fs::path const& path() const { return path_; }

 private:
  fs::path path_{};
};

xr::StateDict weights_of(std::int64_t tensors, std::int64_t bytes) {
  xr::StateDict weights;
  for (std::int64_t i = 0; i < tensors; ++i) {
    auto tensor = xr::Tensor::empty({bytes}, xr::Dtype::u8);
    bench_fill(tensor.mutable_bytes().data(), tensor.nbytes(), static_cast<int>(i));
    weights.insert_or_assign("transformer.layers." + std::to_string(i) + ".weight", std::move(tensor));
  }
  return weights;
}

/// A workspace in which rank 0 has written its state once.
struct Written {
  explicit Written(benchmark::State const& state)
      : weights(weights_of(state.range(0), state.range(1))), workspace(folder.path(), {.rank = 0}) {
    workspace.write_configs_and_weights(config, weights);
  }
  [[nodiscard]] fs::path file() const {
    for (auto const& entry : fs::directory_iterator(folder.path())) {
      if (entry.path().extension() == ".safetensors") return entry.path();
    }
    return {};
  }
  [[nodiscard]] std::int64_t bytes() const { return static_cast<std::int64_t>(weights.nbytes()); }

  Folder folder{};
  xr::Json config = {{"decoder_type", "llama"}, {"layers", 32}};
  xr::StateDict weights;
  xr::NFSWorkspace workspace;
};

void write_state(benchmark::State& state) {
  Written written(state);
  for (auto _ : state) written.workspace.write_configs_and_weights(written.config, written.weights);
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * written.bytes());
}

void read_state(benchmark::State& state) {
  Written const written(state);
  for (auto _ : state) {
    auto const read = written.workspace.read_configs_and_weights_from_rank(0);
    if (!read || read->weights.nbytes() != written.weights.nbytes())
      state.SkipWithError("the state differs from the written one");
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * written.bytes());
}

void open_header(benchmark::State& state) {
  Written const written(state);
  auto const file = written.file();
  for (auto _ : state) {
    xr::SafetensorsFile const opened(file);
    if (opened.entries().size() != written.weights.size()) state.SkipWithError("entries are missing");
  }
}

/// The limit: `pread` of the same file into existing memory.
void plain_read(benchmark::State& state) {
  Written const written(state);
  auto const file = written.file();
  std::vector<std::byte> to(fs::file_size(file));
  for (auto _ : state) {
    int const fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    std::size_t done = 0;
    while (done < to.size()) {
      auto const got = ::pread(fd, to.data() + done, to.size() - done, static_cast<off_t>(done));
      if (got <= 0) break;
      done += static_cast<std::size_t>(got);
    }
    ::close(fd);
    if (done != to.size()) state.SkipWithError("cannot read the file");
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * static_cast<std::int64_t>(to.size()));
}

/// Number of tensors, and bytes of each.
void shapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->Args({23, 8192})->Args({400, 8192})->Args({8, 8 << 20})->Unit(benchmark::kMicrosecond)->UseRealTime();
}

BENCHMARK(write_state)->Apply(shapes);
BENCHMARK(read_state)->Apply(shapes);
BENCHMARK(plain_read)->Apply(shapes);
BENCHMARK(open_header)->Apply(shapes);

}  // namespace
