#!/usr/bin/env python3
"""Breaks a running Belljar, round after round, and checks each time that it mended itself.

    chaos/chaos.py [--rounds N] [--seed S] [--door mcp|serve] [--only FAULT,…] [--quick] [--list]

Each round picks a fault, lets clients work while it strikes, and then checks what they were told: errors come in bounded
time, nothing that was acknowledged is lost unless a result said so, everything works again, and nothing is left behind.
The same seed picks the same faults. Needs root, since it looks into processes that hide from their own user.

BELLJAR names the binary (default: target/release/belljar); templates are those of this machine's own Belljar.
"""

import argparse
import collections
import os
import random
import sys
import time
import traceback

import audit_faults  # noqa: F401 — registers its own
import network_faults  # noqa: F401
import state_faults  # noqa: F401
from faults import FAULTS
from world import BELLJAR, World

# A server that has seen so much makes room for a fresh one.
ROUNDS_PER_WORLD = 40


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--door", choices=["mcp", "serve"])
    parser.add_argument("--only", help="these faults, with commas between them")
    parser.add_argument("--quick", action="store_true", help="every fault that is not slow, once")
    parser.add_argument("--list", action="store_true", help="the faults there are")
    options = parser.parse_args()
    if options.list:
        for name, fault in FAULTS.items():
            print(f"{name:36} {' '.join(fault.doors)}{' (slow)' if fault.slow else ''}")
        return 0
    if os.geteuid() != 0:
        print("chaos needs root: it looks into processes that hide from their own user", file=sys.stderr)
        return 77
    if not os.access(BELLJAR, os.X_OK):
        print(f"there is no server at {BELLJAR}: run `make build` first", file=sys.stderr)
        return 1
    for name in (options.only or "").split(","):
        if name and name not in FAULTS:
            print(f"there is no fault {name}; --list lists them", file=sys.stderr)
            return 2
    return run(options)


def plan(options):
    """(door, fault, seed) of every round."""
    rng = random.Random(options.seed)
    names = options.only.split(",") if options.only else list(FAULTS)
    pairs = [(door, name) for name in names for door in FAULTS[name].doors if options.door in (None, door)]
    if options.quick:
        chosen = [(rng.choice([door for door, other in pairs if other == name]), name)
                  for name in dict.fromkeys(name for _, name in pairs) if not FAULTS[name].slow]
    else:
        # Slow ones are tried too, but do not take most of the time.
        weights = [1 if FAULTS[name].slow else 5 for _, name in pairs]
        chosen = rng.choices(pairs, weights, k=options.rounds)
    numbered = [(door, name, rng.randrange(1 << 30)) for door, name in chosen]
    # Rounds of one door go together, in pieces: a world is expensive to make.
    piece = lambda index: index // ROUNDS_PER_WORLD
    return sorted(numbered, key=lambda r: r[0]) if options.quick else [
        r for n in range(piece(len(numbered)) + 1)
        for r in sorted(numbered[n * ROUNDS_PER_WORLD:(n + 1) * ROUNDS_PER_WORLD], key=lambda r: r[0])]


def run(options):
    world, door, done, began = None, None, collections.Counter(), time.monotonic()
    try:
        for number, (wanted, name, seed) in enumerate(plan(options), 1):
            if world is None or door != wanted or sum(done.values()) % ROUNDS_PER_WORLD == 0:
                if world:
                    ending, world = world, None
                    ending.close()
                world, door = World(wanted, seed), wanted
            at = time.monotonic()
            if not FAULTS[name].needs(world):
                done[f"{name} (not possible here)"] += 1
                continue
            try:
                strike(world, FAULTS[name], seed)
            except BaseException:
                print(f"\nround {number}, door {door}, fault {name}, seed {seed}: chaos/chaos.py --rounds {options.rounds} "
                      f"--seed {options.seed}{' --quick' if options.quick else ''}", flush=True)
                raise
            done[name] += 1
            print(f"{number:5} {door:5} {name:36} {time.monotonic() - at:6.1f} s", flush=True)
        if world:
            ending, world = world, None
            ending.close()
    except Exception:  # noqa: BLE001 — whatever it is, it is what this program looks for
        traceback.print_exc()
        return 1
    finally:
        if world:
            world.remove()
    print(f"{sum(done.values())} rounds in {time.monotonic() - began:.0f} s, no invariant violated:")
    for name, count in sorted(done.items()):
        print(f"  {name:36} {count}")
    return 0


def strike(world, fault, seed):
    rng = world.random = random.Random(seed)
    while len(world.contexts) < 2:
        world.make_context()
    steps = fault(world)
    reserved = next(steps)
    finish = world.work(rng.randrange(2, 6), seed, reserved)
    time.sleep(rng.random() / 20)
    try:
        next(steps)
    finally:
        finish()
    next(steps, None)
    world.check()


if __name__ == "__main__":
    sys.exit(main())
