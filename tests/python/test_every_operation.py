"""Each operation of a group, blocking and non-blocking, gives what numpy computes from the tensors of all ranks."""

import pytest

pytest.importorskip("numpy")

TENSORS = """
import numpy
n, r = world.world_size, world.rank
rows = list(range(n))  # rank 0 has none

def of(rank, *shape):
    return numpy.random.default_rng([rank, *shape]).integers(1, 9, shape)

def every(*shape):
    return [of(rank, *shape) for rank in range(n)]

def check(name, tensor, out, expected, **options):
    for form in (name, "i" + name):
        result = None if out is None else numpy.full_like(out, -1)
        request = getattr(world, form)(result, tensor, **options)
        if form != name:
            request.wait()
            assert request.test()
        assert result is None or numpy.array_equal(result, expected), (form, options, result, expected)

def check_in_place(name, tensor, expected, **options):
    for form in (name, "i" + name):
        result = tensor.copy()
        request = getattr(world, form)(result, **options)
        if form != name:
            request.wait()
        assert numpy.array_equal(result, expected), (form, options, result, expected)
"""

FOR_ALL = """
reductions = {"sum": numpy.add, "prod": numpy.multiply, "min": numpy.minimum, "max": numpy.maximum,
              "band": numpy.bitwise_and, "bor": numpy.bitwise_or, "bxor": numpy.bitwise_xor}
for op, ufunc in reductions.items():
    check_in_place("all_reduce", of(r, 5, 3), ufunc.reduce(every(5, 3)), op=op)
    check("reduce_scatter", of(r, 2 * n, 3), of(r, 2, 3), ufunc.reduce(every(2 * n, 3))[2 * r : 2 * r + 2], op=op)
    first = sum(rows[:r])
    whole = ufunc.reduce(every(sum(rows), 3))
    check("reduce_scatterv", of(r, sum(rows), 3), of(r, rows[r], 3), whole[first : first + rows[r]], rows=rows, op=op)
check_in_place("all_reduce", of(r, 4).astype(float), sum(every(4)) / n, op="avg")
check("all_gather", of(r, 2, 3), numpy.zeros((n, 2, 3), int), numpy.stack(every(2, 3)))
parts = [of(rank, rows[rank], 3) for rank in range(n)]
check("all_gatherv", parts[r], numpy.zeros((sum(rows), 3), int), numpy.concatenate(parts), rows=rows)
check("all_to_all", of(r, 2 * n), numpy.zeros(2 * n, int),
      numpy.concatenate([sent[2 * r : 2 * r + 2] for sent in every(2 * n)]))
count = [[(3 * src + dst) % 4 for dst in range(n)] for src in range(n)]
sent = [numpy.split(of(src, sum(count[src]), 2), numpy.cumsum(count[src])[:-1]) for src in range(n)]
expected = numpy.concatenate([sent[src][r] for src in range(n)])
check("all_to_allv", numpy.concatenate(sent[r]), numpy.zeros_like(expected), expected,
      send=count[r], receive=[count[src][r] for src in range(n)])
"""

FOR_EACH_ROOT = """
for root in range(n):
    here = r == root
    for op, ufunc in {"sum": numpy.add, "max": numpy.maximum}.items():
        check_in_place("reduce", of(r, 4), ufunc.reduce(every(4)) if here else of(r, 4), op=op, root=root)
    check_in_place("broadcast", of(r, 2, 3), of(root, 2, 3), root=root)
    check("gather", of(r, 2), numpy.zeros((n, 2), int) if here else None, numpy.stack(every(2)), root=root)
    parts = [of(rank, rows[rank], 2) for rank in range(n)]
    whole = numpy.concatenate(parts)
    check("gatherv", parts[r], numpy.zeros_like(whole) if here else None, whole, rows=rows, root=root)
    check("scatterv", whole if here else None, numpy.zeros_like(parts[r]), parts[r], rows=rows, root=root)
    check("scatter", numpy.stack(every(3)) if here else None, numpy.zeros(3, int), of(r, 3), root=root)
"""

MESSAGES = """
right, left = (r + 1) % n, (r - 1) % n
received = numpy.zeros(6, int)
requests = [world.irecv(received, src=left, tag=2), world.isend(of(r, 6), dst=right, tag=2)]
for request in requests:
    request.wait()
assert numpy.array_equal(received, of(left, 6))
"""


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("program", [FOR_ALL, FOR_EACH_ROOT, MESSAGES], ids=["for_all", "for_each_root", "messages"])
def test_results_are_those_of_numpy(ranks, count, program):
    ranks(count, TENSORS + program)


def test_split_by_makes_a_group_of_each_color_in_the_order_of_the_keys(ranks):
    ranks(
        4,
        """
group = world.split_by(world.rank % 2, key=-world.rank)
assert group.ranks == ([2, 0] if world.rank % 2 == 0 else [3, 1])
assert group.all_gather_objects(world.rank) == group.ranks
some = world.split_by(7 if world.rank < 3 else -1)
assert some.connected == (world.rank < 3)
assert world.rank == 3 or some.ranks == [0, 1, 2]
""",
    )


def test_keep_alive_postpones_the_timeout_of_the_waiting_ranks(ranks):
    ranks(
        2,
        """
import time
late = crossrank.connect(job_id="late", timeout=2)
until = time.monotonic() + 5
while world.rank == 1 and time.monotonic() < until:
    late.keep_alive()
    time.sleep(0.05)
late.barrier()
""",
    )


def test_a_cancelled_receive_leaves_the_group_usable(ranks):
    ranks(
        2,
        """
import numpy
if world.rank == 0:
    request = world.irecv(numpy.zeros(3), src=1)
    assert not request.test()
    request.cancel()
    assert request.test()
world.barrier()
assert world.all_gather_objects(world.rank) == [0, 1]
""",
    )


def test_a_cancelled_collective_ends_the_group(ranks):
    ranks(
        2,
        """
import numpy
group = world.split([[0, 1]])
if world.rank == 0:
    request = group.iall_reduce(numpy.ones(3))
    request.cancel()
    assert request.test()
world.barrier()
try:
    group.barrier()
except crossrank.PeerLostError as error:
    assert error.failed_ranks == (0,), error
else:
    raise AssertionError("the group is still usable")
world.barrier()
""",
    )
