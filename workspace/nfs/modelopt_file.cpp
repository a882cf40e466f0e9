#include "workspace/nfs/modelopt_file.hpp"

#include <memory>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/io/opened_file.hpp"
#include "lib/codec/torch/torch_archive_writer.hpp"
#include "lib/codec/torch/torch_load.hpp"
#include "lib/platform/files/atomic_file.hpp"
#include "workspace/nfs/state_file_names.hpp"

namespace crossrank::workspace {
namespace {

using codec::PickleKind;

class AtomicSink final : public codec::ByteSink {
 public:
  explicit AtomicSink(platform::AtomicFile& file) : file_(file) {}
  void write_at(std::uint64_t offset, std::span<std::byte const> from) override { file_.write_at(offset, from); }

 private:
  platform::AtomicFile& file_;
};

StateDict read_weights(codec::TorchArchive const& archive, codec::PickleValue weight) {
  if (weight.is(PickleKind::none)) return {};
  if (!weight.is(PickleKind::dict)) archive.refuse(weight, "\"weight\" is not a dict");
  auto const contents = codec::split_contents(archive, weight);
  if (!contents.values.empty() || contents.tensors.size() != weight.size() / 2)
    archive.refuse(weight, "\"weight\" holds a value that is not a tensor");
  return codec::load_tensors(archive, contents.tensors);
}

}  // namespace

std::optional<RankState> read_modelopt_file(platform::Directory const& directory, int rank) {
  auto const name = torch_file_name(rank);
  auto fd = directory.open_file(name, "NFSWorkspace.read");
  if (!fd) return std::nullopt;
  auto const archive =
      codec::TorchArchive::open(std::make_shared<codec::OpenedFile>(std::move(*fd), directory.path_of(name)));
  auto const root = archive->root();
  auto const config = root.find("config");
  auto const weight = root.find("weight");
  if (!config || !weight || root.size() != 4)
    archive->refuse(root, "not the state of a rank: expected a dict of \"config\" and \"weight\"");
  return RankState{.config = codec::plain_value(*archive, *config), .weights = read_weights(*archive, *weight)};
}

void write_modelopt_file(platform::Directory const& directory, int rank, Json const& config, StateDict const& weights) {
  auto const outputs = codec::torch_outputs(weights);
  codec::TorchArchivePlan const plan(outputs, codec::TorchRoot::modelopt, config);
  platform::AtomicFile file(directory, torch_file_name(rank), plan.file_bytes(), "NFSWorkspace.write");
  AtomicSink sink(file);
  codec::write_torch_archive(plan, outputs, weights, sink);
  file.commit(platform::IfExists::replace);
}

}  // namespace crossrank::workspace
