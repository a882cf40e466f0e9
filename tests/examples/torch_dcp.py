"""Opens a distributed checkpoint of the example `train` with torch. Exits with 77 if this Python has no torch.

torch_dcp.py TRAIN CROSSRANK TEXT
"""
import json
import subprocess
import sys
import tempfile

try:
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

STEPS = 3  # at the checkpoint


def read_safetensors(path):
    """Returns the tensors of a file of F32, by name."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = bytearray(file.read())
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "F32", entry
        begin, end = entry["data_offsets"]
        tensors[name] = torch.frombuffer(data[begin:end], dtype=torch.float32).reshape(entry["shape"])
    return tensors


class Model(torch.nn.Module):
    """A module tree with the parameters of a checkpoint, filled with zeros."""

    def __init__(self, sizes):
        super().__init__()
        for name, size in sizes.items():
            *modules, last = name.split(".")
            at = self
            for module in modules:
                if not hasattr(at, module):
                    at.add_module(module, torch.nn.Module())
                at = getattr(at, module)
            at.register_parameter(last, torch.nn.Parameter(torch.zeros(size)))


def check(folder, expected):
    metadata = dcp.FileSystemReader(folder).read_metadata()
    sizes = {name.removeprefix("model."): entry.size for name, entry in metadata.state_dict_metadata.items()
             if name.startswith("model.")}
    assert sizes.keys() == expected.keys(), sizes.keys() ^ expected.keys()
    chunked = [entry for entry in metadata.state_dict_metadata.values() if len(getattr(entry, "chunks", [])) > 1]
    assert chunked, "no tensor is in several files"

    model = Model(sizes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    weights, state = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optim": state}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.detach(), expected[name]), name
        of_parameter = optimizer.state[parameter]
        assert of_parameter["step"] == STEPS, of_parameter["step"]
        assert of_parameter["exp_avg"].abs().sum() > 0, name
        assert of_parameter["exp_avg_sq"].min() >= 0 and of_parameter["exp_avg_sq"].sum() > 0, name
    group = optimizer.param_groups[0]
    assert group["lr"] == 3e-3 and tuple(group["betas"]) == (0.9, 0.999) and group["weight_decay"] == 0.01, group
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert all(not torch.equal(old, new) for old, new in zip(before, model.parameters()))

    # As one file of torch, in which the nested dicts come back.
    whole = f"{folder}.pt"
    dcp_to_torch_save(folder, whole)
    saved = torch.load(whole, weights_only=True)
    assert saved["optim"]["param_groups"][0]["lr"] == 3e-3
    for name, tensor in expected.items():
        assert torch.equal(saved["model"][name], tensor), name
        assert saved["optim"]["state"][name]["step"] == STEPS
    return saved


def train(program, text, out, steps):
    subprocess.run([program, text, out, str(steps)], check=True, stdout=subprocess.DEVNULL)


def main():
    program, crossrank, text = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        train(program, text, folder, 2 * STEPS)
        half = f"{folder}/half"
        subprocess.run([crossrank, "consolidate", half, f"{folder}/merged"], check=True, stdout=subprocess.DEVNULL)
        expected = read_safetensors(f"{folder}/merged/model.safetensors")
        saved = check(half, expected)

        # The other way: torch saves what it loaded, and this library reads it.
        again = f"{folder}/again"
        dcp.save(saved, checkpoint_id=again)
        subprocess.run([crossrank, "consolidate", again, f"{folder}/twice"], check=True, stdout=subprocess.DEVNULL)
        twice = read_safetensors(f"{folder}/twice/model.safetensors")
        assert twice.keys() == expected.keys()
        assert all(torch.equal(twice[name], tensor) for name, tensor in expected.items())
    print(f"torch {torch.__version__} loaded {len(expected)} parameters and their optimizer's state")


if __name__ == "__main__":
    main()
