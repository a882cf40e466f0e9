"""Options and reports of checkpoint jobs."""

import crossrank
import pytest
from crossrank._options import ConsolidateOptions, ConvertOptions, PlanOptions, SaveOptions, SplitOptions, VerifyOptions

numpy = pytest.importorskip("numpy")

WEIGHT = "model.layers.0.mlp.up_proj.weight"


def shards(folder, ranks=2):
    folder.mkdir()
    for rank in range(ranks):
        weight = numpy.full((2, 4), rank, numpy.float32)
        crossrank.save(folder / f"rank{rank}.safetensors", {WEIGHT: weight, "model.norm.weight": numpy.ones(4, numpy.float32)})
    return folder


def test_a_plan_has_a_hash_and_says_what_changes(tmp_path):
    plan = crossrank.MergePlan(shards(tmp_path / "shards"))
    assert f"{plan.hash:016x}" == plan.to_json()["hash"] and plan.requantized() == []


def test_a_report_says_how_much_was_read(tmp_path):
    crossrank.consolidate(shards(tmp_path / "shards"), tmp_path / "model", read_back="none")
    assert crossrank.verify(tmp_path / "model", checksums=False).bytes_read == 0
    report = crossrank.verify(tmp_path / "model", numbers=True)
    assert report.ok and report.bytes_read == report.bytes == 4 * 4 * 4 + 16


def test_save_replaces_a_file_only_when_forced(tmp_path):
    path = tmp_path / "model.safetensors"
    crossrank.save(path, {"w": numpy.zeros(4)})
    loaded = crossrank.load(path)["w"]
    with pytest.raises(OSError, match="force"):
        crossrank.save(path, {"w": numpy.ones(4)})
    crossrank.save(path, {"w": numpy.ones(4)}, force=True)
    assert loaded.numpy().tolist() == [0] * 4 and crossrank.load(path)["w"].numpy().tolist() == [1] * 4


CALLS = {
    "MergePlan": (lambda world, out, **options: crossrank.MergePlan(out, **options), PlanOptions),
    "load": (lambda world, out, **options: crossrank.load(out, **options), PlanOptions),
    "consolidate": (lambda world, out, **options: crossrank.consolidate(out, out, **options), ConsolidateOptions),
    "convert": (lambda world, out, **options: crossrank.convert(out, out, **options), ConvertOptions),
    "convert, tp": (lambda world, out, **options: crossrank.convert(out, out, tp=2, **options), ConvertOptions),
    "split": (lambda world, out, **options: crossrank.split(out, out, tp=2, **options), SplitOptions),
    "verify": (lambda world, out, **options: crossrank.verify(out, **options), VerifyOptions),
    "save_sharded": (lambda world, out, **options: crossrank.save_sharded({}, out, world=world, **options), SaveOptions),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_unknown_option_is_an_error_that_lists_the_typed_ones(tmp_path, call):
    run, typed = CALLS[call]
    with crossrank.connect() as world, pytest.raises(crossrank.UsageError, match="treads") as raised:
        run(world, tmp_path / "nothing", treads=2)
    listed = set(raised.value.fields["expected"].split(", "))
    if call == "save_sharded":
        listed.remove("config")  # a parameter of its own
    if call.startswith("convert"):  # `to` is its `format`, and each of the two jobs has options that the other lacks
        assert listed - {"format"} < set(typed.__annotations__)
    else:
        assert listed == set(typed.__annotations__)


@pytest.mark.parametrize("option", ["read_back", "crc", "fused_layout"])
def test_unknown_values_are_refused(tmp_path, option):
    with pytest.raises(crossrank.UsageError, match="sometimes"):
        crossrank.consolidate(shards(tmp_path / "shards"), tmp_path / "model", **{option: "sometimes"})


@pytest.mark.parametrize(("option", "number"), [("threads", -3), ("pp", -1), ("max_shard_bytes", 0)])
def test_numbers_that_are_too_small_are_refused(tmp_path, option, number):
    with pytest.raises(crossrank.UsageError, match=rf"`{option}`.*got {number}"):
        crossrank.consolidate(shards(tmp_path / "shards"), tmp_path / "model", **{option: number})
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("max_shard_bytes", -1, "out of range.*int of at least 0.*-1"),
        ("max_shard_bytes", 5e9, "wrong type.*int of at least 0.*float"),
        ("threads", 1 << 40, "out of range.*int.*1099511627776"),
        ("resume", "yes", "wrong type.*bool.*str"),
        ("pattern", 3, "wrong type.*str.*int"),
        ("extra_globals", 3, "wrong type.*list of str.*int"),
    ],
)
def test_an_option_of_a_wrong_kind_says_what_is_expected(tmp_path, option, value, expected):
    with pytest.raises(crossrank.UsageError, match=expected):
        crossrank.consolidate(shards(tmp_path / "shards"), tmp_path / "model", **{option: value})


def damaged_archive(path):
    """Writes an archive of torch and changes one byte of its data, so that its CRC does not match."""
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.full((1000,), 1.0)}, path)
    data = bytearray(path.read_bytes())
    place = data.find(numpy.full(1000, 1.0, numpy.float32).tobytes())
    assert place > 0
    data[place + 400] ^= 1
    path.write_bytes(data)


def test_a_wrong_checksum_of_an_archive_is_an_error_unless_ignored(tmp_path):
    damaged_archive(tmp_path / "model.pth")
    with pytest.raises(crossrank.FormatError):
        crossrank.consolidate(tmp_path / "model.pth", tmp_path / "strict")
    assert crossrank.consolidate(tmp_path / "model.pth", tmp_path / "model", crc="ignore").files == 1
    assert crossrank.load(tmp_path / "model.pth", crc="ignore")["w"].shape == (1000,)
    assert not crossrank.verify(tmp_path / "model.pth").ok and crossrank.verify(tmp_path / "model.pth", crc="ignore").ok


class Settings:
    """A class that no archive may mention unless it is allowed."""


def test_a_class_in_an_archive_is_an_error_unless_allowed(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.ones(3), "settings": Settings()}, tmp_path / "model.pth")
    name = f"{Settings.__module__}.Settings"
    with pytest.raises(crossrank.FormatError, match=name):
        crossrank.MergePlan(tmp_path / "model.pth")
    assert crossrank.MergePlan(tmp_path / "model.pth", extra_globals=[name]).tensors == ["w"]
    with pytest.raises(crossrank.UsageError, match="extra_globals"):
        crossrank.MergePlan(tmp_path / "model.pth", extra_globals=3)


def test_fused_layers_are_merged_as_the_layout_says(tmp_path):
    name = "model.layers.0.mlp.gate_up_proj.weight"
    whole = numpy.arange(16, dtype=numpy.float32).reshape(8, 2)
    for rank in range(2):
        crossrank.save(tmp_path / f"rank{rank}.safetensors", {name: whole[4 * rank : 4 * rank + 4]})
    assert numpy.array_equal(crossrank.load(tmp_path, fused_layout="plain")[name].numpy(), whole)
    rows = crossrank.load(tmp_path, fused_layout="per_rank")[name].numpy()[:, 0] // 2
    assert rows.tolist() == [0, 1, 4, 5, 2, 3, 6, 7]


def test_a_split_has_groups_of_experts(tmp_path):
    """`moe_ep` is that of the result, as in the command, and `source_moe_ep` that of the input."""
    stack = numpy.arange(4 * 2 * 4, dtype=numpy.float32).reshape(4, 4, 2)
    model = {"model.layers.0.mlp.experts.gate_up_proj": stack, "model.norm.weight": numpy.ones(4, numpy.float32)}
    crossrank.save(tmp_path / "model.safetensors", model)
    for call in (crossrank.split, crossrank.convert):
        out = tmp_path / call.__name__
        call(tmp_path / "model.safetensors", out, tp=2, moe_ep=2)
        parts = [crossrank.load(out / f"rank{rank}.safetensors") for rank in range(2)]
        shapes = [part["model.layers.0.mlp.experts.gate_up_proj"].shape for part in parts]
        assert shapes == [(2, 4, 2), (2, 4, 2)]
        again = tmp_path / f"{call.__name__}_again"
        call(out, again, tp=1, source_moe_ep=2)
        merged = crossrank.load(again / "rank0.safetensors")["model.layers.0.mlp.experts.gate_up_proj"]
        assert numpy.array_equal(merged.numpy(), stack)
