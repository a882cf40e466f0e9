"""Merges checkpoints of real programs with `crossrank consolidate` and compares them with the programs' own merges.

oracle.py CROSSRANK WORK [PROGRAM[:NAME,NAME...]]...   prints a line a case and ends with a table; exits with 1 if an output is wrong
"""
import collections
import importlib
import os
import sys
import time

import comparison

PROGRAMS = {"transformers": "transformers_cases", "deepspeed": "deepspeed_cases", "dcp": "dcp_cases",
            "compressed-tensors": "compressed_tensors_cases", "accelerate": "accelerate_cases",
            "megatron": "megatron_cases", "export": "export_cases", "transforms": "transforms_cases"}


def main():
    crossrank, work, chosen = sys.argv[1], sys.argv[2], sys.argv[3:] or list(PROGRAMS)
    counts, wrong = collections.defaultdict(collections.Counter), 0
    for choice in chosen:
        program, _, names = choice.partition(":")
        start = time.monotonic()
        folder = f"{work}/{program}"
        os.makedirs(folder)
        arguments = {"wanted": names.split(",")} if names else {}
        try:
            cases, failed = importlib.import_module(PROGRAMS[program]).make(folder, **arguments)
        except ImportError as error:
            counts[program]["skipped"] += 1
            print(f"{program} | skipped | {error}", flush=True)
            continue
        for name, reason in failed.items():
            counts[program]["not made"] += 1
            print(f"{program} | {name} | not made | {' '.join(reason.split())[:200]}", flush=True)
        if not cases:
            wrong += 1
            print(f"{program} | produced no case", flush=True)
        for number, case in enumerate(cases):
            outcome = comparison.run_case(crossrank, case, f"{folder}/out-{number}")
            counts[program][outcome.verdict] += 1
            wrong += outcome.verdict == "wrong"
            print(f"{program} | {case.name} | {outcome.verdict} | {outcome.reason}", flush=True)
        print(f"{program}: {time.monotonic() - start:.0f} s", flush=True)
    columns = ("equal", "refused", "wrong", "not made", "skipped")
    print("\nprogram | " + " | ".join(columns))
    for program, verdicts in counts.items():
        print(" | ".join([program] + [str(verdicts[key]) for key in columns]))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
