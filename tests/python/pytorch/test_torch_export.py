"""Export of checkpoints from the memory of ranks of torch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
import crossrank.torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch_ranks import run_ranks  # noqa: E402


def export(rank: int, size: int) -> None:
    import os
    import tempfile

    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import init_device_mesh

    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.LayerNorm(9), torch.nn.Linear(9, 5, bias=False))
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    out = os.path.join(str(folder[0]), "model")
    assert crossrank.torch.export_checkpoint(model, out, config={"kind": "small"}).files == 1
    loaded = crossrank.load(out)
    assert set(loaded) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(loaded[name].torch(), tensor), name
    full = crossrank.torch.gather_full_state_dict(model, dst=1)
    assert set(full) == (set(expected) if rank == 1 else set())
    assert all(torch.equal(full[name], expected[name]) for name in full)
    with pytest.raises(crossrank.UsageError):
        crossrank.torch.export_checkpoint(model, out)
    dist.barrier()
    dist.destroy_process_group()


def export_uneven_pieces_of_tensor_parallelism(rank: int, size: int) -> None:
    """FSDP2 shards the piece of each tensor-parallel rank, whose lengths are uneven here."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "tp"))
    for rows in (9, 7, 3, 8):
        torch.manual_seed(rows)
        model = torch.nn.Sequential(torch.nn.Linear(4, rows, bias=False))
        expected = model[0].weight.detach().clone()
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
        full = crossrank.torch.gather_full_state_dict(model)
        if rank == 0:
            assert torch.equal(full["0.weight"], expected), rows
    dist.destroy_process_group()


def export_packed_pairs(rank: int, size: int) -> None:
    """An element of torch's F4 is two values, and the files count values."""
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh

    whole = torch.arange(4 * size, dtype=torch.uint8).view(2 * size, 2)
    mine = whole[2 * rank : 2 * rank + 2].view(torch.float4_e2m1fn_x2)
    spread = DTensor.from_local(mine, init_device_mesh("cpu", (size,)), [Shard(0)], run_check=False)
    full = crossrank.torch.gather_full_state_dict({"packed": spread})
    if rank == 0:
        assert full["packed"].dtype is torch.float4_e2m1fn_x2
        assert torch.equal(full["packed"].view(torch.uint8), whole)
    dist.destroy_process_group()


def export_after_a_failure(rank: int, size: int) -> None:
    """A group that an export has ended is replaced, also after torch's own group was made anew."""
    import tempfile

    from crossrank.compat import groups

    def gather() -> None:
        full = crossrank.torch.gather_full_state_dict({"a": torch.arange(4.0)})
        assert list(full) == (["a"] if rank == 0 else [])

    gather()
    before = groups.world()
    with pytest.raises(crossrank.Error), groups.until_death(groups.world()) as group:
        if rank == 1:
            group.abort("interrupted")
        group.barrier()
    gather()
    assert groups.world() is not before
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{folder[0]}/store", rank=rank, world_size=size)
    again = groups.world()
    gather()
    assert again is groups.world()
    dist.destroy_process_group()


def export_after_a_raising_callback(rank: int, size: int) -> None:
    """A progress callback that raises on one rank ends the export on all, and the group remains usable."""
    import os
    import tempfile

    def refuse(done: int, total: int, stage: str) -> None:
        raise KeyError("no more progress")

    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    out = os.path.join(str(folder[0]), "model")
    weights = {"a": torch.arange(4.0)}
    with pytest.raises(KeyError if rank == 0 else crossrank.RemoteError, match="no more progress") as caught:
        crossrank.torch.export_checkpoint(weights, out, progress=refuse if rank == 0 else None)
    assert rank == 0 or (caught.value.failed_ranks == (0,) and "KeyError" in str(caught.value)), str(caught.value)
    full = crossrank.torch.gather_full_state_dict(weights)
    assert list(full) == (["a"] if rank == 0 else [])
    dist.barrier()
    dist.destroy_process_group()


def export_in_the_background(rank: int, size: int) -> None:
    """Training changes the parameters while they are written; collectives of the same ranks continue."""
    import os
    import tempfile

    from crossrank.compat import groups
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import init_device_mesh

    torch.manual_seed(5)
    model = torch.nn.Linear(700, 900)
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    out = os.path.join(str(folder[0]), "model")
    request = crossrank.torch.async_export_checkpoint(model, out, single_file=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    groups.world().barrier()
    assert request.wait().files == 1 and request.done()
    loaded = crossrank.load(out)
    assert all(torch.equal(loaded[name].torch(), tensor) for name, tensor in expected.items())
    with pytest.raises(crossrank.UsageError):  # the output exists
        crossrank.torch.async_export_checkpoint(model, out).wait()
    with pytest.raises(crossrank.UnavailableError):
        crossrank.torch.async_export_checkpoint(model, out + "2", max_copy_bytes=1000)
    dropped = crossrank.torch.async_export_checkpoint(model, out + "3")
    del dropped
    dist.barrier()
    assert sorted(os.listdir(str(folder[0]))) in (["model"], ["model", "model3"])  # it may have been faster
    dist.destroy_process_group()


def interrupted_export(rank: int, size: int) -> None:
    """Ctrl-C in the wait for a background export cancels it on all ranks."""
    import os
    import signal
    import tempfile
    import threading
    import time
    from pathlib import Path

    shared = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(shared, src=0)
    pids = [0] * size
    dist.all_gather_object(pids, os.getpid())
    weights = {f"w{i}": torch.full((1 << 22,), float(i)) for i in range(8)}

    def interrupt() -> None:
        while ") T " not in Path(f"/proc/{pids[1]}/stat").read_text():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
        os.kill(pids[1], signal.SIGCONT)

    def is_cancelled(out: str) -> bool:
        request = crossrank.torch.async_export_checkpoint(weights, out)
        try:
            if rank == 1:
                # The export does not continue before rank 0 was interrupted, which then lets this rank continue.
                os.kill(os.getpid(), signal.SIGSTOP)
                request.wait()
            else:
                helper = threading.Thread(target=interrupt)
                try:
                    helper.start()
                    request.wait()
                finally:
                    helper.join()
            ended = True
        except (KeyboardInterrupt, crossrank.CancelledError) as error:
            assert isinstance(error, KeyboardInterrupt) == (rank == 0)
            ended = False
        dist.barrier()
        assert rank == 0 or ended == os.path.exists(out)
        return not os.path.exists(out)

    # An export may end before rank 1 stops.
    assert any(is_cancelled(os.path.join(str(shared[0]), f"model{attempt}")) for attempt in range(10))
    dist.barrier()
    dist.destroy_process_group()


def interrupted_after_the_start(rank: int, size: int) -> None:
    """Ctrl-C reaches rank 1 when its export has begun and the call has not returned. Both ranks keep the same group."""
    import os
    import tempfile

    shared = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(shared, src=0)
    out = os.path.join(str(shared[0]), "model")
    weights = {f"w{i}": torch.full((1 << 20,), float(i)) for i in range(8)}
    made = crossrank.torch.checkpoint.ExportRequest

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    for attempt in range(5):
        if rank == 1:
            crossrank.torch.checkpoint.ExportRequest = interrupted  # type: ignore[assignment,misc]
            with pytest.raises(KeyboardInterrupt):
                crossrank.torch.async_export_checkpoint(weights, f"{out}{attempt}")
            crossrank.torch.checkpoint.ExportRequest = made  # type: ignore[misc]
        else:
            request = crossrank.torch.async_export_checkpoint(weights, f"{out}{attempt}")
            try:  # it may end before rank 1 cancels it
                request.wait()
            except crossrank.CancelledError as error:
                assert error.group_usable
                assert not os.path.exists(f"{out}{attempt}")
        crossrank.torch.export_checkpoint({"a": torch.ones(3)}, f"{out}{attempt}", force=True)
    dist.barrier()
    dist.destroy_process_group()


def states_of_all_kinds(rank: int, size: int) -> None:
    """Tied weights and entries without a tensor."""

    class Config:
        tie_word_embeddings = True

    class Tied(torch.nn.Module):
        _tied_weights_keys = ("head.weight",)
        config = Config()

        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(4, 3)
            self.head = torch.nn.Linear(3, 4, bias=False)
            self.head.weight = self.embedding.weight

    torch.manual_seed(3)
    model = Tied()
    full = crossrank.torch.gather_full_state_dict(model)
    if rank == 0:
        model.load_state_dict(full, strict=True)
    full = crossrank.torch.gather_full_state_dict({"a": torch.ones(2), "a._extra_state": None})
    assert list(full) == (["a"] if rank == 0 else [])
    with pytest.raises(crossrank.UsageError, match=r"bytes under a\._extra_state"):
        crossrank.torch.gather_full_state_dict({"a": torch.ones(2), "a._extra_state": b"x"})
    dist.destroy_process_group()


def names_without_wrappers(rank: int, size: int) -> None:
    """Wrappers of torch.compile and DistributedDataParallel leave no trace, and a tied weight is written once."""
    import os
    import tempfile

    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.nn.parallel import DistributedDataParallel

    class Config:
        tie_word_embeddings = True

        def to_json_string(self) -> str:
            return '{"kind": "small"}'

    class Tied(torch.nn.Module):
        _tied_weights_keys = ("head.weight",)

        def __init__(self) -> None:
            super().__init__()
            self.config = Config()
            self.module = torch.nn.Embedding(4, 3)
            self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)])
            self.head = torch.nn.Linear(3, 4, bias=False)
            self.head.weight = self.module.weight

    def with_wrapped_parts() -> torch.nn.Module:
        model = Tied()
        model.layers[0] = checkpoint_wrapper(torch.compile(model.layers[0]))
        model.layers[1] = DistributedDataParallel(torch.compile(model.layers[1]))
        model.head = torch.compile(model.head)
        return model

    def make(kind: int) -> torch.nn.Module:
        torch.manual_seed(3)
        match kind:
            case 0:
                return torch.compile(Tied())
            case 1:
                return DistributedDataParallel(torch.compile(Tied()))
            case 2:
                return torch.compile(DistributedDataParallel(Tied()))
            case _:
                return with_wrapped_parts()

    torch.manual_seed(3)
    expected = Tied().state_dict()
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    for kind in range(4):
        model = make(kind)
        full = crossrank.torch.gather_full_state_dict(model)
        assert_equal(full, expected if rank == 0 else {})
        out = os.path.join(str(folder[0]), f"model{kind}")
        crossrank.torch.export_checkpoint(model, out)
        assert set(crossrank.load(out)) == set(expected) - {"head.weight"}
        assert os.path.exists(os.path.join(out, "config.json"))
    dist.barrier()
    dist.destroy_process_group()


def small_llama() -> tuple[dict[str, Any], dict[str, torch.Tensor], dict[str, int]]:
    """Returns a config, the weights, and for those that tensor parallelism shards the dimension."""
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 12,
        "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 1, "vocab_size": 6,
    }  # fmt: skip
    layer = "model.layers.0."
    sharded = {layer + f"self_attn.{name}_proj.weight": (0, (8, 8)) for name in "qkv"}
    sharded |= {layer + f"mlp.{name}_proj.weight": (0, (12, 8)) for name in ["gate", "up"]}
    sharded |= {layer + "self_attn.o_proj.weight": (1, (8, 8)), layer + "mlp.down_proj.weight": (1, (8, 12))}
    sharded |= {"model.embed_tokens.weight": (0, (6, 8)), "lm_head.weight": (0, (6, 8))}
    norms = [layer + "input_layernorm.weight", layer + "post_attention_layernorm.weight", "model.norm.weight"]
    torch.manual_seed(7)
    weights = {name: torch.randn(shape) for name, (_, shape) in sharded.items()} | {name: torch.randn(8) for name in norms}
    return config, weights, {name: dim for name, (dim, _) in sharded.items()}


def shards_of(whole: dict[str, torch.Tensor], dims: dict[str, int], rank: int, size: int) -> dict[str, torch.Tensor]:
    return {name: tensor.chunk(size, dims[name])[rank] if name in dims else tensor for name, tensor in whole.items()}


def assert_equal(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert set(got) == set(expected)
    assert all(torch.equal(got[name], tensor) for name, tensor in expected.items())


def plain_shards(rank: int, size: int) -> None:
    """Tensor-parallel shards that are plain tensors, merged by the rules of their architecture."""
    import os
    import tempfile

    config, whole, dims = small_llama()
    mine = shards_of(whole, dims, rank, size)
    grid = crossrank.torch.Grid(tp_rank=rank, tp=size)
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    out = os.path.join(str(folder[0]), "model")
    crossrank.torch.export_checkpoint(mine, out, config=config, grid=grid)
    assert_equal({name: tensor.torch() for name, tensor in crossrank.load(out).items()}, whole)
    assert_equal(crossrank.torch.gather_full_state_dict(mine, config=config, grid=grid), whole if rank == 0 else {})
    with pytest.raises(crossrank.MismatchError):
        crossrank.torch.gather_full_state_dict(mine, config=config, grid=crossrank.torch.Grid(tp_rank=rank, tp=size + rank))
    dist.barrier()
    dist.destroy_process_group()


def resharded_for_inference(rank: int, size: int) -> None:
    """Parameters of FSDP become tensor-parallel shards, and these whole tensors again."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    config, whole, dims = small_llama()
    mesh = init_device_mesh("cpu", (size,))
    trained = {name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in whole.items()}
    grid = crossrank.torch.Grid(tp_rank=rank, tp=size)
    shards = crossrank.torch.reshard(trained, grid, config=config)
    assert_equal(shards, shards_of(whole, dims, rank, size))
    shards["lm_head.weight"].zero_()  # its memory is this rank's own
    back = crossrank.torch.reshard({**shards, "lm_head.weight": whole["lm_head.weight"].chunk(size)[rank]},
                                   crossrank.torch.Grid(), grid=grid, config=config)  # fmt: skip
    assert_equal(back, whole)
    # Two pipeline stages. Each rank names its own tensors.
    stage = crossrank.torch.Grid(pp_rank=rank, pp=size)
    here = crossrank.torch.reshard(trained, stage, config=config, wants=lambda name: ("layers" in name) == (rank == 0))
    assert_equal(here, {name: tensor for name, tensor in whole.items() if ("layers" in name) == (rank == 0)})

    def refuse(name: str) -> bool:
        raise KeyError(name)

    with pytest.raises(KeyError if rank == 1 else crossrank.Error):
        crossrank.torch.reshard(trained, grid, config=config, wants=refuse if rank == 1 else None)
    dist.barrier()
    dist.destroy_process_group()


def translated_names(rank: int, size: int) -> None:
    """A file of rules translates names in both directions."""
    import json
    import os
    import tempfile

    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    rules = os.path.join(str(folder[0]), "rules.json")
    if rank == 0:
        names = {"tensor": "decoder.layers.*.norm.weight", "rename": "model.layers.*.ln.weight"}
        with open(rules, "w") as file:
            json.dump({"rules": [names | {"sharding": "replicate"}]}, file)
    dist.barrier()
    megatron = {"decoder.layers.3.norm.weight": torch.arange(4.0)}
    full = crossrank.torch.gather_full_state_dict(megatron, rules=rules)
    assert list(full) == (["model.layers.3.ln.weight"] if rank == 0 else [])
    out = os.path.join(str(folder[0]), "model")
    huggingface = {"model.layers.3.ln.weight": torch.arange(4.0)}
    crossrank.torch.export_checkpoint(huggingface, out, rules=rules, direction="backward")
    assert list(crossrank.load(out)) == list(megatron)
    with pytest.raises(crossrank.UsageError, match="forward, backward"):
        crossrank.torch.gather_full_state_dict(megatron, rules=rules, direction="back")
    dist.barrier()
    dist.destroy_process_group()


def tensors_without_plain_values() -> dict[str, torch.Tensor]:
    """Returns tensors by what their refusal says."""
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor

    one = torch.eye(2)
    shards = [Shard.from_tensor_and_offsets(one, [2 * dist.get_rank(), 0], dist.get_rank())]
    sharded: ShardedTensor = sharded_tensor.init_from_local_shards(shards, [4, 2])
    return {
        "sparse_coo": one.to_sparse(),
        "nested": torch.nested.nested_tensor([one, one[:1]]),
        "meta": one.to("meta"),
        "ShardedTensor.*device_mesh": sharded,
    }


def mesh_in_descending_order(rank: int, size: int) -> None:
    """Torch's functions disagree about the order of such shards."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = DeviceMesh("cpu", torch.tensor([1, 0]))
    tensor = distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])
    with pytest.raises(crossrank.UsageError, match="do not ascend"):
        crossrank.torch.gather_full_state_dict({"a": tensor})
    dist.barrier()
    dist.destroy_process_group()


def bad_arguments_of_one_rank(rank: int, size: int) -> None:
    """The exception of one rank ends the call on all ranks, and the next call works."""
    import os
    import tempfile

    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    out = os.path.join(str(folder[0]), "model")
    good = {"a": torch.ones(3)}
    bad = good if rank == 0 else {**good, "step": 3}
    answer = (crossrank.RemoteError, "rank 1") if rank == 0 else (crossrank.UsageError, "step|max_shard_bytes|Grid|dst")
    from crossrank.torch import Grid

    for call in (
        lambda: crossrank.torch.export_checkpoint(bad, out),
        lambda: crossrank.torch.async_export_checkpoint(bad, out),
        lambda: crossrank.torch.gather_full_state_dict(bad),
        lambda: crossrank.torch.reshard(bad, crossrank.torch.Grid()),
        lambda: crossrank.torch.export_checkpoint(good, out, max_shard_bytes=5 if rank == 0 else "step"),  # type: ignore[arg-type]
        lambda: crossrank.torch.export_checkpoint(good, out, grid=Grid() if rank == 0 else "step"),  # type: ignore[arg-type]
        lambda: crossrank.torch.async_export_checkpoint(good, out, grid=Grid() if rank == 0 else "step"),  # type: ignore[arg-type]
        lambda: crossrank.torch.gather_full_state_dict(good, dst=0 if rank == 0 else "step"),  # type: ignore[arg-type]
        lambda: crossrank.torch.reshard(good, Grid() if rank == 0 else "step"),  # type: ignore[arg-type]
    ):
        with pytest.raises(answer[0], match=answer[1]):
            call()
    for call in (
        lambda: crossrank.torch.export_checkpoint(good, out if rank == 0 else None),  # type: ignore[arg-type]
        lambda: crossrank.torch.async_export_checkpoint(good, out if rank == 0 else None),  # type: ignore[arg-type]
    ):
        with pytest.raises(crossrank.RemoteError if rank == 0 else TypeError):
            call()
    for kind, tensor in tensors_without_plain_values().items():
        unusable = good if rank == 0 else {"a": tensor}
        with pytest.raises(answer[0], match=kind if rank == 1 else "rank 1"):
            crossrank.torch.export_checkpoint(unusable, out)
    with pytest.raises(crossrank.RemoteError if rank == 0 else ZeroDivisionError):
        crossrank.torch.reshard(good, crossrank.torch.Grid(), wants=lambda _: rank == 0 or 1 // 0 == 1)

    class Unreadable(dict[str, torch.Tensor]):
        def items(self) -> Any:
            raise ValueError("\udcff")

    with pytest.raises(crossrank.RemoteError if rank == 0 else ValueError, match=r"\\udcff" if rank == 0 else "\udcff"):
        crossrank.torch.gather_full_state_dict(good if rank == 0 else Unreadable(good))
    assert os.listdir(str(folder[0])) == []
    crossrank.torch.export_checkpoint(good, out)
    different = {"a": torch.full((3,), float(rank))}
    request = crossrank.torch.async_export_checkpoint(different, out + "2")
    for _ in range(2):
        with pytest.raises(crossrank.FormatError):
            request.wait()
    request = crossrank.torch.async_export_checkpoint(good, out + "3")
    assert request.wait() == request.wait()
    dist.barrier()
    dist.destroy_process_group()


def test_an_export_of_sharded_parameters_is_the_model() -> None:
    run_ranks(__file__, "export", 2)


def test_export_of_uneven_pieces_of_tensor_parallelism() -> None:
    run_ranks(__file__, "export_uneven_pieces_of_tensor_parallelism", 4, backend="gloo")


@pytest.mark.parametrize(
    "scenario",
    [
        "export_packed_pairs",
        "export_after_a_failure",
        "export_after_a_raising_callback",
        "export_in_the_background",
        "interrupted_export",
        "interrupted_after_the_start",
        "states_of_all_kinds",
        "names_without_wrappers",
        "plain_shards",
        "resharded_for_inference",
        "translated_names",
        "bad_arguments_of_one_rank",
        "mesh_in_descending_order",
    ],
)
def test_exports_beside_gloo(scenario: str) -> None:
    run_ranks(__file__, scenario, 2, backend="gloo")
