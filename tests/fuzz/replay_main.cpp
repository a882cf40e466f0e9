#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size);

/// Runs a fuzz target over each file of a folder, cut to every length up to 600 bytes and whole; for compilers without
/// libFuzzer.
int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::size_t files = 0;
  for (auto const& file : std::filesystem::directory_iterator(argv[1])) {
    std::ifstream stream(file.path(), std::ios::binary);
    std::string const text(std::istreambuf_iterator<char>(stream), {});
    auto const* const data = reinterpret_cast<std::uint8_t const*>(text.data());
    for (std::size_t size = 0; size < text.size() && size < 600; ++size) LLVMFuzzerTestOneInput(data, size);
    LLVMFuzzerTestOneInput(data, text.size());
    ++files;
  }
  std::printf("replayed %zu files\n", files);
  return files == 0 ? 1 : 0;
}
