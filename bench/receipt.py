"""Reads receipts of `tigon bench`: JSON Lines, an environment object, then one object a measurement. Anything else is refused
with the file's name and the line's number."""

import json
import math

NUMBER, TEXT, FLAG = (int, float), str, bool

ENVIRONMENT = {"receipt": TEXT, "date": TEXT, "device": dict, "versions": dict, "compiler": TEXT, "isa": TEXT, "threads": NUMBER,
               "seed": NUMBER, "quick": FLAG, "seconds_a_row": NUMBER, "commit": (TEXT, type(None)), "protocol": TEXT,
               "ceilings": dict}
DEVICE = {"cpu": (TEXT, type(None)), "cores": NUMBER, "memory_bytes": NUMBER, "huge_pages": (TEXT, type(None)),
          "architecture": (TEXT, type(None))}
GPU = {"gpu": TEXT, "multiprocessors": NUMBER}  # stand in it as well where the work was done on one
MEASUREMENT = {"family": TEXT, "pass": TEXT, "row": TEXT, "dtype": TEXT, "provider": TEXT, "provider_version": TEXT,
               "device_ms": NUMBER, "op_ms": NUMBER, "host_us": (*NUMBER, type(None)), "floor_ms": NUMBER,
               "fastest_ms": NUMBER, "repetitions": NUMBER, "peak_bytes": (*NUMBER, type(None)), "correct": FLAG}
POSITIVE = ("device_ms", "op_ms", "floor_ms", "fastest_ms", "repetitions")
WORK = {"flop": "ceiling_gflops", "bytes": "ceiling_gbs"}  # one of these pairs stands in each measurement
KEY = ("family", "row", "pass", "dtype", "provider")  # of a measurement, once in a receipt
FORMAT = "tigon bench 1"


class Malformed(Exception):
    """What is wrong with a receipt, and in which line."""


def no_constant(text):
    raise ValueError(f"{text} is no JSON number")


def check_members(found, expected):
    for name, kinds in expected.items():
        if name not in found:
            raise ValueError(f'"{name}" is missing')
        value = found[name]
        if isinstance(value, bool) and kinds is not FLAG or not isinstance(value, kinds):
            raise ValueError(f'"{name}" has the wrong type: {json.dumps(value)}')
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f'"{name}" is not finite')


def check_environment(found):
    check_members(found, ENVIRONMENT)
    check_members(found["device"], {**DEVICE, **GPU} if "gpu" in found["device"] else DEVICE)
    if found["receipt"] != FORMAT:
        raise ValueError(f'"receipt" is "{found["receipt"]}", not "{FORMAT}"')


def check_measurement(found):
    check_members(found, MEASUREMENT)
    pairs = [(work, ceiling) for work, ceiling in WORK.items() if work in found]
    if len(pairs) != 1:
        raise ValueError('one of "flop" and "bytes" must be there')
    check_members(found, dict.fromkeys(pairs[0], NUMBER))
    for name in (*POSITIVE, *pairs[0]):
        if found[name] <= 0:
            raise ValueError(f'"{name}" is not positive')
    if found["peak_bytes"] is not None and found["peak_bytes"] < 0:
        raise ValueError('"peak_bytes" is negative')


def read(path):
    """(environment, measurements) of a receipt."""
    environment, measurements, seen = None, [], set()
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                found = json.loads(line, parse_constant=no_constant)
                if not isinstance(found, dict):
                    raise ValueError("no JSON object")
                if environment is None:
                    check_environment(found)
                    environment = found
                else:
                    check_measurement(found)
                    key = tuple(found[name] for name in KEY)
                    if key in seen:
                        raise ValueError("the same measurement stands in a line above")
                    seen.add(key)
                    measurements.append(found)
            except ValueError as error:
                raise Malformed(f"{path}: line {number}: {error}") from None
    if environment is None:
        raise Malformed(f"{path}: line 1: the environment object is missing")
    return environment, measurements
