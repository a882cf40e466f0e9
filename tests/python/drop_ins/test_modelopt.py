"""crossrank.compat.modelopt under ModelOpt's own exporter: results are those of ModelOpt's own functions, bit for bit."""

from __future__ import annotations

import copy
import os
import tempfile
import warnings
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("modelopt.torch.export.postprocess", reason="ModelOpt 0.47 is not installed")

from torch_ranks import run_ranks  # noqa: E402


def _linear(kind: str, rows: int, columns: int, **quantized: Any) -> Any:
    from modelopt.torch.export.model_config import LinearConfig

    return LinearConfig(linear_type=kind, weight=torch.randn(rows, columns).to(torch.bfloat16), **quantized)


def _model() -> Any:
    """A small model in which every rule of ModelOpt's merge has a layer: FP8, INT8 with smoothing, AWQ, biases, none."""
    from modelopt.torch.export.model_config import (
        LINEAR_COLUMN,
        LINEAR_ROW,
        AttentionConfig,
        DecoderLayerConfig,
        EmbeddingConfig,
        LayernormConfig,
        MLPConfig,
        ModelConfig,
        QKVConfig,
    )

    torch.manual_seed(3)
    layers = []
    for _ in range(2):

        def fp8(kind: str, rows: int, columns: int) -> Any:
            return _linear(
                kind, rows, columns, quantization="fp8",
                activation_scaling_factor=torch.rand(1), weights_scaling_factor=torch.rand(1),
            )  # fmt: skip

        qkv = QKVConfig(q=fp8(LINEAR_COLUMN, 16, 16), k=fp8(LINEAR_COLUMN, 8, 16), v=fp8(LINEAR_COLUMN, 8, 16))
        qkv.q.bias = torch.randn(16)
        dense = _linear(LINEAR_ROW, 16, 16, quantization="int8_sq", weights_scaling_factor=torch.rand(16),
                        activation_scaling_factor=torch.rand(1), prequant_scaling_factor=torch.rand(16))  # fmt: skip
        fc = _linear(LINEAR_COLUMN, 32, 16, quantization="int4_awq", weights_scaling_factor=torch.rand(32, 2),
                     awq_block_size=8)  # fmt: skip
        layers.append(
            DecoderLayerConfig(
                decoder_type="llama",
                input_layernorm=LayernormConfig(weight=torch.randn(16)),
                attention=AttentionConfig(
                    qkv=qkv,
                    dense=dense,
                    kv_cache_dtype="FP8",
                    k_cache_scaling_factor=torch.rand(1),
                    v_cache_scaling_factor=torch.rand(1),
                ),
                post_layernorm=LayernormConfig(weight=torch.randn(16)),
                mlp=MLPConfig(fc=fc, proj=_linear(LINEAR_ROW, 16, 32), hidden_act="silu"),
                num_attention_heads=4,
                attention_head_size=4,
                num_kv_heads=2,
            )
        )
    return ModelConfig(
        dtype="bfloat16",
        vocab_size=64,
        vocab_embedding=EmbeddingConfig(weight=torch.randn(64, 16)),
        layers=layers,
        ln_f=LayernormConfig(weight=torch.randn(16), eps=1e-6),
        lm_head=_linear(LINEAR_COLUMN, 64, 16),
    )


def _without_views(config: Any) -> Any:
    """Copies tensors that are views of larger ones, which ModelOpt's own functions cannot send."""
    if isinstance(config, torch.Tensor):
        return config.clone()
    if isinstance(config, list):
        return [_without_views(item) for item in config]
    if is_dataclass(config):
        for field in fields(config):
            setattr(config, field.name, _without_views(getattr(config, field.name)))
    return config


def _assert_equal(ours: Any, theirs: Any, path: str = "model") -> None:
    assert type(ours) is type(theirs), f"{path}: {type(ours)} and {type(theirs)}"
    if is_dataclass(ours):
        for field in fields(ours):
            _assert_equal(getattr(ours, field.name), getattr(theirs, field.name), f"{path}.{field.name}")
    elif isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs), path
        for index, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            _assert_equal(mine, other, f"{path}[{index}]")
    elif isinstance(ours, torch.Tensor):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, path
        assert torch.equal(ours.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8)), path
    else:
        assert ours == theirs, path


def tensor_parallel_merge(rank: int, size: int) -> None:
    import crossrank.compat.modelopt
    import modelopt.torch.export.postprocess as postprocess
    import torch.distributed as dist

    part = _without_views(postprocess._split_model_config_for_tp(_model(), size)[rank])
    results = []
    for install in (False, True):
        (crossrank.compat.modelopt.install if install else crossrank.compat.modelopt.uninstall)()
        config = copy.deepcopy(part)
        postprocess._merge_model_configs_to_first_tp(config, list(range(size)))
        results.append(config)
    if rank == 0:
        _assert_equal(results[1], results[0])
    dist.barrier()
    dist.destroy_process_group()


def pipeline_merge(rank: int, size: int) -> None:
    import crossrank.compat.modelopt
    import modelopt.torch.export.postprocess as postprocess
    import torch.distributed as dist

    part = _without_views(postprocess._split_model_config_for_pp(_model(), size)[rank])
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    for use_files in (False, True):
        results = []
        for install in (False, True):
            (crossrank.compat.modelopt.install if install else crossrank.compat.modelopt.uninstall)()
            config = copy.deepcopy(part)
            path = os.path.join(str(folder[0]), str(install)) if use_files else None
            if path and rank == 0:
                os.makedirs(path, exist_ok=True)
            dist.barrier()  # in ModelOpt only rank 0 makes the folder, and the others do not wait for it
            postprocess._model_model_configs_to_first_pp(config, list(range(size)), workspace_path=path)
            results.append(config)
        dist.barrier()  # each rank removes its own files
        if rank == 0:
            _assert_equal(results[1], results[0])
            assert not use_files or not os.listdir(os.path.join(str(folder[0]), "True"))
    dist.barrier()
    dist.destroy_process_group()


def configs_of_none(rank: int, size: int) -> None:
    import crossrank
    import torch.distributed as dist
    from crossrank.compat.modelopt import NFSWorkspace, get_configs_parallel, get_tensors_parallel

    own = _model().ln_f if rank != 1 else None
    with get_configs_parallel(own, [2, 1, 0], None) as configs:
        assert [config is None for config in configs] == ([False, False] if rank == 2 else [])
    received = []
    with get_tensors_parallel(torch.full((3,), float(rank)), [0, 1, 2]) as tensors:
        received = list(tensors)
    if rank == 0:
        received[1] += 1
        assert [tensor[0].item() for tensor in received] == [0, 2, 2]
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    workspace = NFSWorkspace(folder[0])
    dist.barrier()
    workspace.write_configs_and_weights({"rank": rank, 7: (1, [2, None])}, {"w": torch.full((2,), rank)})
    dist.barrier()
    config, weights = workspace.read_configs_and_weights_from_rank((rank + 1) % size)
    assert config == {"rank": (rank + 1) % size, 7: (1, [2, None])}
    assert weights is not None and weights["w"].tolist() == [(rank + 1) % size] * 2
    assert not NFSWorkspace().is_initialized
    with pytest.raises(crossrank.UsageError, match="no directory"):
        NFSWorkspace().read_configs_and_weights_from_rank(0)
    dist.barrier()
    dist.destroy_process_group()


def config_that_cannot_be_sent(rank: int, size: int) -> None:
    """All ranks learn why, and their next call works."""
    import crossrank
    import torch.distributed as dist
    from crossrank.compat.modelopt import get_configs_parallel, get_tensors_parallel

    own = _model().ln_f
    if rank == 1:
        own.eps = object()
    with (
        pytest.raises(crossrank.Error if rank == 0 else TypeError, match="cannot send its config" if rank == 0 else "object"),
        get_configs_parallel(own, [0, 1], None),
    ):
        pass
    none: Any = None
    with (
        pytest.raises(
            crossrank.Error if rank == 0 else AttributeError, match="cannot send its tensor" if rank == 0 else "detach"
        ) as held,  # the exception holds the group
        get_tensors_parallel(torch.ones(1) if rank == 0 else none, [0, 1]),
    ):
        pass
    with get_configs_parallel(_model().ln_f, [0, 1], None) as configs:
        assert len(configs) == (2 if rank == 0 else 0)
    del held
    dist.barrier()
    dist.destroy_process_group()


def _llama(ranks: int, rank: int) -> Any:
    """The slice of a small Llama that one tensor-parallel rank holds. ModelOpt expects the whole embedding on each."""
    from transformers import LlamaConfig, LlamaForCausalLM

    def make(parts: int) -> Any:
        torch.manual_seed(5)
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=128 // parts,
                hidden_size=64,
                intermediate_size=128 // parts,
                num_hidden_layers=2,
                num_attention_heads=8 // parts,
                num_key_value_heads=4 // parts,
                head_dim=8,
            )
        ).to(torch.float16)

    whole, own = make(1), make(ranks)
    own.model.embed_tokens = whole.model.embed_tokens
    full = whole.state_dict()
    for name, value in own.state_dict().items():
        for dim, length in enumerate(value.shape):
            if full[name].shape[dim] != length:
                value.copy_(full[name].chunk(ranks, dim)[rank])
    return own


def _export_for_tensorrt(model: Any, folder: str, use_files: bool) -> None:
    from modelopt.torch.export import export_tensorrt_llm_checkpoint

    export_tensorrt_llm_checkpoint(
        model, "llama", dtype=torch.float16, export_dir=folder, inference_tensor_parallel=1, use_nfs_workspace=use_files
    )


def tensorrt_export(rank: int, size: int) -> None:
    """The export of two ranks has the bytes of the export of the whole model, which ModelOpt writes alone."""
    import crossrank.compat.modelopt
    import torch.distributed as dist
    from safetensors.torch import load_file

    wanted = load_file(os.path.join(os.environ["WHOLE_EXPORT"], "rank0.safetensors"))
    crossrank.compat.modelopt.install()
    for use_files in (False, True):
        folder = [tempfile.mkdtemp() if rank == 0 else None]
        dist.broadcast_object_list(folder, src=0)
        _export_for_tensorrt(_llama(size, rank), str(folder[0]), use_files)
        dist.barrier()
        if rank == 0:
            got = load_file(os.path.join(str(folder[0]), "rank0.safetensors"))
            assert sorted(got) == sorted(wanted)
            assert [name for name in wanted if not torch.equal(got[name], wanted[name])] == []
            assert not use_files or not os.listdir(os.path.join(str(folder[0]), "workspace"))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("version", ["0.46.2", "0.48.0", "1.47.0"])
def test_another_minor_version_of_modelopt_is_a_warning(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import crossrank.compat.modelopt
    import modelopt

    monkeypatch.setattr(modelopt, "__version__", version)
    try:
        with pytest.warns(UserWarning, match=f"ModelOpt 0.47, and this is ModelOpt {version}"):
            crossrank.compat.modelopt.install()
    finally:
        crossrank.compat.modelopt.uninstall()


def test_the_tested_version_of_modelopt_is_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    import crossrank.compat.modelopt
    import modelopt

    monkeypatch.setattr(modelopt, "__version__", "0.47.3")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            crossrank.compat.modelopt.install()
    finally:
        crossrank.compat.modelopt.uninstall()


@pytest.mark.parametrize("scenario", ["config_that_cannot_be_sent", "tensor_parallel_merge", "pipeline_merge"])
def test_scenario(scenario: str) -> None:
    run_ranks(__file__, scenario, 2, backend="gloo")


def test_habits_of_modelopt_and_workspaces() -> None:
    run_ranks(__file__, "configs_of_none", 3, backend="gloo")


def test_the_tensorrt_export_of_two_ranks_is_that_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    _export_for_tensorrt(_llama(1, 0), str(tmp_path), use_files=False)
    monkeypatch.setenv("WHOLE_EXPORT", str(tmp_path))
    run_ranks(__file__, "tensorrt_export", 2, backend="gloo")
