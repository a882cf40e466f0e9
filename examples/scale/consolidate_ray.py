"""Merges the shards of a model on all nodes of a Ray cluster that see the files.

consolidate_ray.py SHARDS OUT PLAN.json PARTS [option of `crossrank plan`]...
"""

import subprocess
import sys

import ray

shards, out, plan, parts, *options = sys.argv[1:]
consolidate = ["crossrank", "consolidate", "--plan", plan, "--progress", "none"]


@ray.remote(num_cpus=1, max_retries=3, retry_exceptions=True)
def write_part(part):
    """Writes one part. If its node dies, Ray runs it again on another one."""
    subprocess.run([*consolidate, "--part", f"{part}/{parts}"], check=True)
    return part


subprocess.run(["crossrank", "plan", shards, out, "--parts", parts, "--output", plan, *options], check=True)
ray.init(ignore_reinit_error=True)
waiting = [write_part.remote(part) for part in range(int(parts))]
while waiting:
    done, waiting = ray.wait(waiting)
    print(f"part {ray.get(done[0])} is complete, {len(waiting)} to go", flush=True)
subprocess.run([*consolidate, "--finish"], check=True)
