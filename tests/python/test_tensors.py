"""Tensors in and out: every trap of other libraries' tensors."""

import copy
import ctypes
import gc
import json
import pickle
import struct
import sys

import crossrank
import pytest

numpy = pytest.importorskip("numpy")


def test_bytes_are_read_only_and_not_copied():
    data = bytes(range(16))
    tensor = crossrank.as_tensor(data)
    assert tensor.dtype == "U8" and tensor.readonly and tensor.tobytes() == data


@pytest.mark.parametrize(
    "dtype",
    ["bool", "uint8", "int8", "int16", "uint16", "float16", "int32", "float32", "complex64", "float64", "int64"],
)
def test_numpy_arrays_keep_dtype_and_bytes(dtype):
    array = numpy.arange(6).reshape(2, 3).astype(dtype)
    tensor = crossrank.as_tensor(array)
    assert tensor.shape == (2, 3) and tensor.data_ptr == array.ctypes.data
    assert numpy.array_equal(tensor.numpy(), array) and tensor.numpy().dtype == array.dtype
    assert numpy.array_equal(numpy.from_dlpack(tensor), array)
    viewed = numpy.asarray(tensor)
    assert numpy.array_equal(viewed, array) and viewed.dtype == array.dtype and viewed.ctypes.data == tensor.data_ptr


def test_buffers_have_shape_and_format():
    view = memoryview(crossrank.as_tensor(numpy.arange(6, dtype=numpy.float32).reshape(2, 3)))
    assert view.shape == (2, 3) and view.format == "f" and view.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert bytes(view) == numpy.arange(6, dtype=numpy.float32).tobytes()
    assert numpy.asarray(crossrank.as_tensor(numpy.float64(7.0))).shape == ()
    assert numpy.asarray(crossrank.as_tensor(numpy.zeros((0, 4)))).shape == (0, 4)
    assert not numpy.asarray(crossrank.as_tensor(bytes(4))).flags.writeable


def test_numpy_never_takes_the_bytes_of_bf16_for_numbers():
    tensor = crossrank.empty(numpy.int64(4), "BF16").reshape((numpy.int32(2), 2))
    with pytest.raises(BufferError, match="BF16"):
        memoryview(tensor)
    try:
        assert numpy.asarray(tensor).dtype.name == "bfloat16" and numpy.asarray(tensor).shape == (2, 2)
    except crossrank.UsageError as error:
        assert "ml_dtypes" in str(error)
    assert len(tensor.tobytes()) == 8


@pytest.mark.parametrize("shape", [(), (2, 3), (0, 4)])
@pytest.mark.parametrize("dtype", ["F32", "BF16", "F8_E4M3"])
def test_pickles_and_deep_copies_are_writable_and_independent(shape, dtype):
    tensor = crossrank.zeros(shape, "F32").to(dtype)
    for copied in (pickle.loads(pickle.dumps(tensor)), copy.deepcopy({"w": tensor})["w"]):
        assert copied.shape == shape and copied.dtype == dtype and copied.tobytes() == tensor.tobytes()
        assert not copied.readonly and (tensor.nbytes == 0 or copied.data_ptr != tensor.data_ptr)
    frozen = crossrank.as_tensor(b"1234")
    assert not pickle.loads(pickle.dumps(frozen)).readonly


def test_tensors_are_converted_and_narrowed():
    zeros = crossrank.zeros((2, 3), "F32")
    assert zeros.numpy().tolist() == [[0, 0, 0], [0, 0, 0]] and not zeros.readonly
    whole = crossrank.as_tensor(numpy.arange(6, dtype=numpy.float32).reshape(3, 2))
    rows = whole.narrow(0, 1, 2)
    assert rows.numpy().tolist() == [[2, 3], [4, 5]] and rows.data_ptr == whole.data_ptr + 8
    assert whole.narrow(dim=0, begin=0, length=0).tobytes() == b""
    with pytest.raises(crossrank.UsageError):
        whole.narrow(1, 0, 1)
    assert whole.to("I64").numpy().tolist() == [[0, 1], [2, 3], [4, 5]] and whole.to("F32").data_ptr == whole.data_ptr
    assert whole.to("BF16").to("F64").numpy()[2, 1] == 5
    with pytest.raises(crossrank.UsageError, match="C64"):
        whole.to("C64")


COPIED = 1 << 28


def tensor_bytes():
    return crossrank.zeros((COPIED,), "U8").tobytes


def message_bytes():
    world = crossrank.connect(rank=0, world_size=1)
    queue = crossrank.MessageQueue.create_writer(world, readers=1)
    reader = crossrank.MessageQueue.attach(queue.handle(), reader=0)
    queue.enqueue_bytes(bytes(COPIED))
    return reader.dequeue_bytes


@pytest.mark.parametrize("prepare", [tensor_bytes, message_bytes])
def test_other_threads_run_while_bytes_are_copied(prepare):
    import threading
    import time

    call, ticks, over = prepare(), [], threading.Event()

    def tick():
        while not over.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.monotonic()
    copy = call()
    end = time.monotonic()
    over.set()
    thread.join()
    during = sum(start < at < end for at in ticks)
    assert len(copy) == COPIED and (during >= 3 or end - start < 0.03), (during, end - start)


@pytest.mark.parametrize("shape", ["abc", (1.5,), (1 << 70,), None])
def test_bad_shapes_are_refused(shape):
    with pytest.raises((crossrank.UsageError, TypeError)):
        crossrank.empty(shape, "F32")


def test_a_name_that_is_not_unicode_is_refused(tmp_path):
    with pytest.raises(crossrank.UsageError, match="Unicode"):
        crossrank.save(tmp_path / "file", {"\udcff": numpy.zeros(1)})


def test_arrays_of_ml_dtypes_keep_their_dtype():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = numpy.arange(4).astype(ml_dtypes.bfloat16)
    tensor = crossrank.as_tensor(array)
    assert tensor.dtype == "BF16" and tensor.numpy().dtype == array.dtype


def test_strided_arrays_are_copied_for_reading_and_refused_for_writing():
    array = numpy.arange(12).reshape(3, 4)
    copy = crossrank.as_tensor(array.T)
    assert copy.numpy().tolist() == array.T.tolist()
    copy.numpy()[:] = 0
    assert array.any()
    with crossrank.connect() as world, pytest.raises(crossrank.UsageError, match="contiguous"):
        world.all_reduce(array.T)


def test_read_only_arrays_are_refused_for_writing():
    array = numpy.arange(4)
    array.flags.writeable = False
    with crossrank.connect() as world, pytest.raises(crossrank.UsageError, match="read-only"):
        world.all_reduce(array)


@pytest.mark.parametrize("value", [3, "text", [1, 2], object()])
def test_other_objects_are_refused(value):
    with pytest.raises(crossrank.UsageError):
        crossrank.as_tensor(value)


def test_a_masked_array_is_refused():
    array = numpy.ma.masked_array([1.0, 2.0], mask=[False, True])
    with pytest.raises(crossrank.UsageError, match="mask"):
        crossrank.as_tensor(array)


def test_scalars_of_numpy_are_sent_as_numbers():
    config = {"a": numpy.int64(3), "b": numpy.float32(0.5), "c": [numpy.bool_(True)]}
    with crossrank.connect() as world:
        assert world.broadcast_object(config) == {"a": 3, "b": 0.5, "c": [True]}


@pytest.mark.parametrize("dtype", [">f4", "complex128", "U4", "datetime64[s]"])
def test_unknown_dtypes_are_refused(dtype):
    with pytest.raises(crossrank.UsageError):
        crossrank.as_tensor(numpy.zeros(2, dtype))


@pytest.mark.parametrize("make", [lambda value: [value], lambda value: {"k": value}])
def test_values_with_too_many_levels_are_refused(make):
    own = make(None)
    own[next(iter(own)) if isinstance(own, dict) else 0] = own  # it contains itself
    deep = 1
    for _ in range(100):
        deep = make(deep)
    with crossrank.connect(rank=0, world_size=1) as world:
        queue = crossrank.MessageQueue.create_writer(world, readers=1)
        for value in (own, deep):
            with pytest.raises(crossrank.UsageError, match="64 levels"):
                queue.enqueue_dict({"x": value})


def test_a_tensor_that_was_not_initialized_has_no_buffer():
    with pytest.raises(BufferError, match="not initialized"):
        memoryview(crossrank.Tensor.__new__(crossrank.Tensor))


def test_views_keep_the_memory_alive_and_release_it():
    array = numpy.arange(1000)
    before = sys.getrefcount(array)
    tensor = crossrank.as_tensor(array)
    view = numpy.from_dlpack(tensor)
    del tensor
    gc.collect()
    assert view[999] == 999
    del view
    gc.collect()
    assert sys.getrefcount(array) == before


class Exporter:
    """An object that is nobody's tensor, and gives the capsules of one with the arguments of its own choice."""

    def __init__(self, tensor, **options):
        self.capsule = lambda: tensor.__dlpack__(**options)

    def __dlpack__(self, **_):
        return self.capsule()


class WithDevice(Exporter):
    """An exporter on the CPU."""

    def __dlpack_device__(self):
        return (1, 0)


class OldExporter:
    """An exporter from before DLPack 1.0, which has no versions."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()


def test_capsules_of_both_kinds_are_taken():
    array = numpy.arange(6.0).reshape(2, 3)
    before = sys.getrefcount(array)
    for exporter in (Exporter(array), Exporter(array, max_version=(1, 0)), OldExporter(array)):
        tensor = crossrank.as_tensor(exporter)
        assert tensor.data_ptr == array.ctypes.data and numpy.array_equal(tensor.numpy(), array)
        del tensor, exporter
    gc.collect()
    assert sys.getrefcount(array) == before
    array.flags.writeable = False
    assert crossrank.as_tensor(Exporter(array, max_version=(1, 0))).readonly
    used = Exporter(numpy.ones(3))
    capsule = used.capsule()
    used.capsule = lambda: capsule
    assert crossrank.as_tensor(used).tobytes() == numpy.ones(3).tobytes()
    with pytest.raises((ValueError, RuntimeError)):  # the memory has another owner by now
        crossrank.as_tensor(used)


def test_capsules_of_both_kinds_are_given():
    array = numpy.arange(6.0).reshape(2, 3)
    before = sys.getrefcount(array)
    tensor = crossrank.as_tensor(array)
    for options, name in (
        ({}, "dltensor"),
        ({"max_version": (0, 8)}, "dltensor"),
        ({"max_version": (1, 3)}, "dltensor_versioned"),
    ):
        assert f'"{name}"' in repr(tensor.__dlpack__(**options))  # dropped without a consumer
        view = numpy.from_dlpack(WithDevice(tensor, **options))
        assert view.ctypes.data == tensor.data_ptr and numpy.array_equal(view, array)
        del view
    del tensor
    gc.collect()
    assert sys.getrefcount(array) == before
    frozen = crossrank.as_tensor(bytes(8))
    for options in ({}, {"max_version": (0, 8)}):
        with pytest.raises(BufferError, match="read-only"):
            frozen.__dlpack__(copy=False, **options)
        assert numpy.from_dlpack(WithDevice(frozen, **options)).tobytes() == bytes(8)
    assert not numpy.from_dlpack(WithDevice(frozen, copy=False, max_version=(1, 0))).flags.writeable
    assert numpy.from_dlpack(WithDevice(frozen, copy=True)).tobytes() == bytes(8)


@pytest.mark.parametrize("size", [8, 1 << 20])
def test_a_consumer_that_ignores_the_read_only_flag_writes_to_a_copy(tmp_path, size):
    crossrank.save(tmp_path / "a.safetensors", {"a": numpy.zeros(size, numpy.uint8)})
    tensor = crossrank.load(tmp_path / "a.safetensors")["a"]
    for options in ({}, {"max_version": (1, 0)}):
        view = numpy.from_dlpack(WithDevice(tensor, **options))
        ctypes.memset(view.ctypes.data, 7, 1)
        assert view[0] == 7 and tensor.numpy()[0] == 0


def test_torch_takes_and_gives_capsules():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex64):
        values = torch.arange(6).reshape(2, 3).to(dtype)
        for options in ({}, {"max_version": (1, 0)}):
            tensor = crossrank.as_tensor(Exporter(values, **options))
            assert tensor.data_ptr == values.data_ptr() and tensor.shape == (2, 3)
            view = torch.from_dlpack(tensor)
            assert view.dtype == dtype and view.data_ptr() == values.data_ptr() and view.equal(values)
            # A consumer of before DLPack 1.0 takes the capsule itself.
            assert torch.utils.dlpack.from_dlpack(tensor.__dlpack__(**options)).equal(values)
        del tensor
        gc.collect()
        assert view.equal(values), "the view keeps the memory"
    filled = torch.from_dlpack(crossrank.as_tensor(numpy.zeros((2, 2))))
    filled += 1
    assert filled.tolist() == [[1, 1], [1, 1]]
    turned = crossrank.as_tensor(Exporter(torch.arange(6.0).reshape(2, 3).t()))
    assert turned.shape == (3, 2) and turned.torch().tolist() == [[0, 3], [1, 4], [2, 5]]
    with pytest.raises(crossrank.UsageError):
        crossrank.as_tensor(Exporter(torch.zeros(3, dtype=torch.complex128)))


def test_a_capsule_of_an_unknown_device_is_refused():
    # The struct of before DLPack 1.0: no memory, device type 7 (Vulkan), no dimensions, one F32, nothing to free.
    managed = ctypes.create_string_buffer(struct.pack("<QiiiBBHQQQQQ", 0, 7, 0, 0, 2, 32, 1, 0, 0, 0, 0, 0))
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    exporter = Exporter(numpy.zeros(1))
    exporter.capsule = lambda: make(ctypes.addressof(managed), b"dltensor", None)
    with pytest.raises(crossrank.UsageError, match="unknown kind of device"):
        crossrank.as_tensor(exporter)


def test_torch_tensors_of_every_kind():
    torch = pytest.importorskip("torch")
    base = torch.arange(12.0).reshape(3, 4)
    assert crossrank.as_tensor(base[1:]).data_ptr == base[1:].data_ptr()
    assert crossrank.as_tensor(base.t()).torch().equal(base.t())
    assert crossrank.as_tensor(torch.nn.Parameter(base)).torch().equal(base)
    assert crossrank.as_tensor(torch.zeros(0, 3)).shape == (0, 3)
    for dtype in (torch.bfloat16, torch.bool, torch.float8_e4m3fn, torch.complex64):
        values = torch.ones(4).to(dtype)
        assert crossrank.as_tensor(values).torch().view(torch.uint8).equal(values.view(torch.uint8))
    conjugate = torch.tensor([1 + 2j], dtype=torch.complex64).conj()
    assert crossrank.as_tensor(conjugate).torch()[0] == 1 - 2j
    for bad in (torch.zeros(2, device="meta"), torch.zeros(2, dtype=torch.complex128), torch.eye(2).to_sparse()):
        with pytest.raises(crossrank.UsageError):
            crossrank.as_tensor(bad)


def test_quantized_dtypes_of_torch_are_refused():
    torch = pytest.importorskip("torch")
    for dtype in (torch.qint8, torch.quint8, torch.qint32):
        quantized = torch.quantize_per_tensor(torch.ones(4), scale=0.1, zero_point=0, dtype=dtype)
        with pytest.raises(crossrank.UsageError, match=str(dtype)):
            crossrank.as_tensor(quantized)


def test_torch_tensors_of_f4_have_two_values_in_an_element(tmp_path):
    torch = pytest.importorskip("torch")
    if not hasattr(torch, "float4_e2m1fn_x2"):
        with pytest.raises(crossrank.UsageError, match="torch has no F4"):
            crossrank.empty((2, 4), "F4").torch()
        return
    pytest.importorskip("safetensors")
    from safetensors.torch import load_file, save_file

    values = torch.arange(15, dtype=torch.uint8).view(3, 5).view(torch.float4_e2m1fn_x2)
    view = crossrank.as_tensor(values)
    assert (view.shape, view.dtype, view.data_ptr) == ((3, 10), "F4", values.data_ptr())
    for tensor in (values, values.t(), values[:0]):
        returned = crossrank.as_tensor(tensor).torch()
        assert returned.dtype == tensor.dtype and returned.view(torch.uint8).equal(tensor.view(torch.uint8))
    crossrank.save(tmp_path / "ours.safetensors", {"w": values})
    save_file({"w": values}, tmp_path / "theirs.safetensors")
    for read in (load_file(tmp_path / "ours.safetensors"), crossrank.load(tmp_path / "theirs.safetensors").torch()):
        assert read["w"].dtype == values.dtype and read["w"].view(torch.uint8).equal(values.view(torch.uint8))
    with pytest.raises(crossrank.UsageError, match="no dimension"):
        crossrank.as_tensor(values[0, 0])
    with pytest.raises(crossrank.UsageError, match="has 3"):
        crossrank.empty((2, 3), "F4").torch()


def test_torch_tensors_are_on_the_cpu_whatever_the_default_device():
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        for shape in ((0, 3), (2, 3)):
            assert crossrank.empty(shape, "F32").torch().device.type == "cpu"


def test_a_view_outlives_the_storage_of_a_torch_tensor():
    torch = pytest.importorskip("torch")
    # Memory of this size is unmapped when it is freed.
    model = torch.nn.Linear(4096, 4096, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    view = crossrank.as_tensor(model.weight)
    expected = bytes(model.weight.detach().numpy())
    model.half()
    assert view.tobytes() == expected
    other = torch.ones(1 << 24)
    second = crossrank.as_tensor(other)
    other.data = torch.zeros(3)
    assert second.tobytes() == expected


def test_saved_tensors_are_loaded_when_asked_for(tmp_path):
    weights = {"a": numpy.arange(4, dtype=numpy.float32), "b": numpy.ones((2, 2), numpy.float16)}
    crossrank.save(tmp_path / "model.safetensors", weights)
    loaded = crossrank.load(tmp_path)
    assert list(loaded) == ["a", "b"] or set(loaded) == {"a", "b"}
    assert loaded["a"].numpy().tolist() == [0, 1, 2, 3]
    assert crossrank.verify(tmp_path).ok


def test_a_loaded_model_goes_into_a_module_of_torch(tmp_path):
    torch = pytest.importorskip("torch")
    model, other = torch.nn.Linear(300, 200), torch.nn.Linear(300, 200)
    crossrank.save(tmp_path / "model.safetensors", model.state_dict())
    other.load_state_dict(crossrank.load(tmp_path).torch())
    assert torch.equal(other.weight, model.weight) and torch.equal(other.bias, model.bias)


def test_an_index_gives_its_model(tmp_path):
    two_files_with_an_index(tmp_path)
    assert set(crossrank.load(tmp_path / "model.safetensors.index.json")) == set(crossrank.load(tmp_path))


@pytest.mark.parametrize("metadata", [{"a": 1}, {1: "a"}])
def test_metadata_that_are_not_text_are_refused(metadata, tmp_path):
    with pytest.raises(TypeError, match="not text"):
        crossrank.save(tmp_path / "file.safetensors", {"a": numpy.zeros(1)}, metadata=metadata)
    assert not list(tmp_path.iterdir())


def test_empty_metadata_stay_empty(tmp_path):
    file = tmp_path / "model.safetensors"
    crossrank.save(file, {"a": numpy.zeros(1)}, metadata={})
    assert b'"format"' not in file.read_bytes()


def two_files_with_an_index(folder):
    import json

    names = {"first.safetensors": ["a", "b"], "second.safetensors": ["c"]}
    for file, tensors in names.items():
        crossrank.save(folder / file, {name: numpy.full(3, ord(name), numpy.int32) for name in tensors})
    # As Mistral's repositories have one: the same weights once more.
    crossrank.save(folder / "consolidated.safetensors", {"other.a": numpy.zeros(3, numpy.int32)})
    index = {"weight_map": {name: file for file, tensors in names.items() for name in tensors}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return index


def test_a_model_with_an_index_has_the_tensors_that_it_lists(tmp_path):
    two_files_with_an_index(tmp_path)
    loaded = crossrank.load(tmp_path)
    assert sorted(loaded) == ["a", "b", "c"] and loaded["c"].numpy()[0] == ord("c")


def test_a_missing_file_of_an_index_is_named(tmp_path):
    two_files_with_an_index(tmp_path)
    (tmp_path / "second.safetensors").unlink()
    with pytest.raises(crossrank.FormatError, match=r"second\.safetensors is missing, which holds c"):
        crossrank.load(tmp_path)


def test_a_missing_tensor_of_an_index_is_named(tmp_path):
    import json

    index = two_files_with_an_index(tmp_path)
    index["weight_map"]["b"] = "second.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(crossrank.FormatError, match=r"second\.safetensors does not hold the tensor b"):
        crossrank.load(tmp_path)


BAD_INDICES = {
    "open": "{",
    "list": "[]",
    "empty": "{}",
    "number": '{"weight_map": 1}',
    "list of tensors": '{"weight_map": []}',
    "no tensors": '{"weight_map": {}}',
    "no file name": '{"weight_map": {"a": ""}}',
    "other folder": '{"weight_map": {"a": "../x.safetensors"}}',
    "not UTF-8": "\xff",
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("text", BAD_INDICES.values(), ids=BAD_INDICES)
def test_a_bad_index_is_a_format_error(tmp_path, text):
    two_files_with_an_index(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(crossrank.FormatError, match="index"):
        crossrank.load(tmp_path)


def test_an_index_that_cannot_be_read_is_an_io_error(tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    index.mkdir()
    with pytest.raises(crossrank.IoError) as caught:
        crossrank.load(tmp_path)
    assert isinstance(caught.value, IsADirectoryError) and caught.value.filename == str(index)


def test_a_loaded_tensor_is_a_view_of_the_file(tmp_path):
    file = tmp_path / "model.safetensors"
    crossrank.save(file, {"w": numpy.arange(1 << 18, dtype=numpy.int64)})
    before = file.read_bytes()
    weights = crossrank.load(file, source_tp=None)  # as if it were left out
    first, second = weights["w"], weights["w"]
    assert first.readonly and first.data_ptr == second.data_ptr
    assert not first.numpy().flags.writeable
    del weights
    mine = first.clone_on_write()
    mine.numpy()[:] = 7
    assert mine.numpy()[-1] == 7 and first.numpy()[-1] == (1 << 18) - 1 and second.numpy()[0] == 0
    assert file.read_bytes() == before
    with pytest.raises(crossrank.UsageError, match="cannot be combined with source_tp"):
        crossrank.load(file, checksums=True, source_tp=1)


def test_a_tensor_is_compared_with_its_checksum_on_request(tmp_path):
    crossrank.NFSWorkspace(tmp_path, rank=0).write_configs_and_weights({}, {"w": numpy.arange(1 << 10)})
    (file,) = tmp_path.glob("rank_0_state.*.safetensors")
    verified = crossrank.load(file, checksums=True, rules=None)["w"]
    assert not verified.readonly and verified.numpy().tolist() == list(range(1 << 10))
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)
    with pytest.raises(crossrank.FormatError):
        _ = crossrank.load(file, checksums=True)["w"]
    plain = tmp_path / "plain.safetensors"
    crossrank.save(plain, {"w": numpy.arange(4)})
    with pytest.raises(crossrank.FormatError, match="has no checksums"):
        crossrank.load(plain, checksums=True)


def test_a_path_with_a_null_byte_is_a_value_error(tmp_path):
    for call in (
        lambda path: crossrank.load(path),
        lambda path: crossrank.save(path, {}),
        lambda path: crossrank.consolidate(path, tmp_path / "out"),
        lambda path: crossrank.consolidate(tmp_path, path),
        lambda path: crossrank.split(tmp_path, path, tp=2),
        lambda path: crossrank.verify(path),
        lambda path: crossrank.MergePlan(path),
    ):
        with pytest.raises(ValueError, match="embedded null byte"):
            call(f"{tmp_path}/a\0b")


def test_writing_to_a_torch_tensor_changes_no_file(tmp_path):
    torch = pytest.importorskip("torch")
    file = tmp_path / "model.safetensors"
    crossrank.save(file, {"large": torch.arange(1 << 18), "small": torch.ones(3)})
    before = file.read_bytes()
    weights = crossrank.load(file)
    for name in weights:
        weights[name].torch().fill_(9)
    assert file.read_bytes() == before and weights["small"].torch().tolist() == [1, 1, 1]


def two_ranks(folder):
    folder.mkdir()
    for rank in range(2):
        weights = {"model.layers.0.mlp.up_proj.weight": numpy.full((2, 4), rank, numpy.float32)}
        crossrank.save(folder / f"rank{rank}.safetensors", {**weights, "model.norm.weight": numpy.ones(4, numpy.float32)})
    return folder


def test_shards_are_loaded_as_one_model(tmp_path):
    shards = two_ranks(tmp_path / "shards")
    for loaded in (crossrank.load(shards), crossrank.load(shards, source_tp=2)):
        assert list(loaded) == ["model.layers.0.mlp.up_proj.weight", "model.norm.weight"]
        weight = loaded["model.layers.0.mlp.up_proj.weight"]
        assert weight.numpy().tolist() == [[0] * 4, [0] * 4, [1] * 4, [1] * 4] and not weight.readonly
        assert loaded["model.norm.weight"].shape == (4,)
        with pytest.raises(KeyError):
            loaded["model.norm.bias"]
    with pytest.raises(crossrank.UsageError, match=r"crossrank\.verify"):
        crossrank.load(shards, checksums=True)
    with pytest.raises(crossrank.UsageError, match="sourcetp"):
        crossrank.load(shards, sourcetp=2)


def test_every_rank_loads_by_itself(ranks, tmp_path):
    shards = two_ranks(tmp_path / "shards")
    program = f"""
    if world.rank == 1:  # no rank needs another for it
        assert crossrank.load({str(shards)!r})["model.norm.weight"].shape == (4,)
    world.barrier()
    """
    ranks(2, program)


@pytest.mark.parametrize("to", ["torch", "images"])
def test_other_formats_are_loaded(tmp_path, to):
    shards = two_ranks(tmp_path / "shards")
    crossrank.convert(shards, tmp_path / "model", to=to)
    loaded = crossrank.load(tmp_path / "model")
    assert loaded["model.layers.0.mlp.up_proj.weight"].numpy()[3, 3] == 1 and len(loaded) == 2


def test_a_distributed_checkpoint_of_torch_is_loaded(tmp_path):
    torch = pytest.importorskip("torch")
    import torch.distributed.checkpoint as dcp

    state = {"model": {"w": torch.arange(6.0).reshape(2, 3), "step": torch.tensor(7)}}
    dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    loaded = crossrank.load(tmp_path / "dcp", model_key="model")
    assert loaded["w"].torch().equal(state["model"]["w"]) and loaded["step"].torch().item() == 7


def test_a_folder_without_a_checkpoint_is_an_error(tmp_path):
    with pytest.raises(crossrank.Error, match=str(tmp_path)):
        crossrank.load(tmp_path)
    with pytest.raises(OSError, match="absent"):
        crossrank.load(tmp_path / "absent")


def test_merge_plan_explains_and_merges(tmp_path):
    for rank in range(2):
        weight = numpy.full((2, 4), rank, numpy.float32)
        crossrank.save(tmp_path / f"rank{rank}.safetensors", {"model.layers.0.mlp.up_proj.weight": weight})
    plan = crossrank.MergePlan(tmp_path)
    assert plan.tensors == ["model.layers.0.mlp.up_proj.weight"] and plan.bytes == 64
    assert "rank1" in plan.explain(plan.tensors[0])
    (tmp_path / "out").mkdir()
    plan.save(tmp_path / "out" / "plan.json")
    again = crossrank.MergePlan.load(tmp_path / "out" / "plan.json")
    assert again.to_json()["hash"] == plan.to_json()["hash"]
    crossrank.consolidate(again, tmp_path / "out" / "model")
    assert crossrank.load(tmp_path / "out" / "model")[plan.tensors[0]].shape == (4, 4)


def test_checkpoint_round_trip(tmp_path):
    for rank in range(2):
        weight = numpy.full((2, 4), rank, numpy.float32)
        crossrank.save(tmp_path / f"rank{rank}.safetensors", {"model.layers.0.mlp.up_proj.weight": weight})
    (tmp_path / "out").mkdir()
    seen = []
    crossrank.consolidate(tmp_path, tmp_path / "out" / "model", progress=lambda *each: seen.append(each))
    merged = crossrank.load(tmp_path / "out" / "model")["model.layers.0.mlp.up_proj.weight"]
    assert merged.shape == (4, 4) and seen[-1][0] == seen[-1][1]


def test_an_exception_of_the_progress_callback_is_raised_and_leaves_no_output(tmp_path):
    def refuse(done, total, stage):
        raise KeyError("no more progress")

    for rank in range(2):
        weight = numpy.full((2, 4), rank, numpy.float32)
        crossrank.save(tmp_path / f"rank{rank}.safetensors", {"model.layers.0.mlp.up_proj.weight": weight})
    (tmp_path / "out").mkdir()
    with pytest.raises(KeyError, match="no more progress"):
        crossrank.consolidate(tmp_path, tmp_path / "out" / "model", progress=refuse)
    assert not (tmp_path / "out" / "model" / "model.safetensors").exists()
    with pytest.raises(KeyError, match="no more progress"):
        crossrank.verify(tmp_path, numbers=True, progress=refuse)
    with pytest.raises(TypeError):
        crossrank.verify(tmp_path, numbers=True, progress=lambda done: None)


@pytest.mark.parametrize("source", ["model.safetensors", "plan"])
def test_a_loaded_checkpoint_can_be_pickled(tmp_path, source, monkeypatch):
    monkeypatch.chdir(tmp_path)
    crossrank.save("model.safetensors", {"w": numpy.arange(4, dtype=numpy.float32)})
    loaded = crossrank.load("model.safetensors") if source != "plan" else crossrank.load(".", source_tp=1)
    monkeypatch.chdir("/")
    for again in (pickle.loads(pickle.dumps(loaded)), copy.deepcopy(loaded)):
        assert list(again) == ["w"] and again["w"].numpy().tolist() == [0, 1, 2, 3]


def test_load_and_merge_agree_on_tensors_that_the_index_lacks(tmp_path):
    crossrank.save(tmp_path / "one.safetensors", {"a": numpy.zeros(2, numpy.float32)})
    crossrank.save(tmp_path / "two.safetensors", {name: numpy.zeros(1, numpy.float32) for name in ("b", "extra")})
    listed = {"a": "one.safetensors", "b": "two.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": listed}))
    assert sorted(crossrank.load(tmp_path)) == sorted(crossrank.MergePlan(tmp_path).tensors) == ["a", "b", "extra"]


def test_slice_copies_a_part_of_any_dimension():
    whole = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
    part = crossrank.slice(whole, 1, 1, 2)
    assert numpy.array_equal(part.numpy(), whole[:, 1:3])
    with pytest.raises(crossrank.UsageError, match="use slice"):
        crossrank.as_tensor(whole).narrow(1, 1, 2)


def test_something_else_than_a_group_is_a_type_error():
    tensor = numpy.zeros(2, numpy.float32)
    for call in (
        lambda: crossrank.get_tensors_parallel(tensor, group=object()),
        lambda: crossrank.SharedMemoryWorkspace(None),
        lambda: crossrank.MessageQueue.create(None),
        lambda: crossrank.consolidate("a", "b", world=3),
        lambda: crossrank.zero_first("group", int),
    ):
        with pytest.raises(TypeError, match=r"expected a crossrank\.Collective"):
            call()


def test_an_error_names_the_tensor(tmp_path):
    with pytest.raises(crossrank.UsageError, match=r"not a tensor.*layer\.weight"):
        crossrank.save(tmp_path / "model.safetensors", {"layer.bias": numpy.zeros(1), "layer.weight": [1.0]})


def test_a_nested_tensor_is_refused(tmp_path):
    torch = pytest.importorskip("torch")
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(crossrank.UsageError, match="nested"):
        crossrank.save(tmp_path / "model.safetensors", {"a": nested})
