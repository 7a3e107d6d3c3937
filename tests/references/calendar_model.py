"""A model of fixed windows of the calendar, on Python's zoneinfo, beside `replay`.

    calendar_model.py SECONDS REPLAY

Starts the program `REPLAY` with a random calendar, in memory or on a Redis that it starts, sends it
random checks for random times, and compares each answer with the model. Stops at the first
difference.
"""

import json
import random
import subprocess
import sys
import time
from zoneinfo import ZoneInfo, available_timezones

from calendar_windows import window
from redis_server import redis

UNITS = {
    "day": ["", "06:00", "02:00"],
    "week": ["", "sunday", "wednesday 23:00"],
    "month": ["", "15", "31", "29 01:00"],
    "year": ["", "02-29", "04-01 06:00"],
}
LENGTHS = {"day": 86_400, "week": 604_800, "month": 2_678_400, "year": 31_622_400}
# 1990 and 2040.
TIMES = (631_152_000, 2_208_988_800)
CHECKS = 400


class Key:
    """What a key has used in the window that ends at `end`."""

    def __init__(self):
        self.used, self.end, self.since, self.charges = 0, 0, 0, []

    def at(self, now, end):
        # The stored end stands until it is over, also if the clock has stepped back. A window
        # without a charge is not stored.
        if now >= self.end or self.used == 0:
            self.used, self.end, self.charges = 0, end, []


def expected(key, op, limit, cost, now, end, receipt):
    key.at(now, end)
    charged = False
    if op == "reset":
        key.used, key.end, key.charges = 0, 0, []
        cost = 0
    elif op == "refund":
        # After a step back of the clock, a charge from before the first one is not given back.
        if receipt in key.charges and receipt[0] >= key.since:
            key.charges.remove(receipt)
            key.used -= cost
        cost = 0
    fits = cost == 0 or key.used + cost <= limit
    never = cost > limit
    left = limit - key.used
    if fits and op in ("charge", "peek"):
        left -= cost
        if op == "charge" and cost > 0:
            if key.used == 0:
                key.since = now
            key.used += cost
            key.charges.append((now, cost))
            charged = True
    used = limit - left if op == "peek" and fits else key.used
    until_end = (key.end or end) - now
    return {
        "allowed": fits,
        "limit": limit,
        "remaining": max(left, 0),
        "retry_after_us": None if fits or never else until_end,
        "reset_after_us": until_end if used > 0 else 0,
        "delay_us": 0,
        "never": never,
    }, charged


def sequence(chance, replay, store):
    zone = chance.choice(ZONES)
    unit = chance.choice(list(UNITS))
    start = chance.choice(UNITS[unit])
    units = chance.choice([1, 3, 10, 1_000_000])
    limit = {"name": "api", "algorithm": "fixed_window", "quota": f"{units}/{unit}"}
    if unit == "day" or chance.random() < 0.9:
        # A day is of the calendar if it has a zone or a start, and 24 hours otherwise.
        limit["time_zone"] = zone
    else:
        zone = "UTC"
        if unit == "week":
            limit["time_zone"] = zone
    if start:
        limit["starts"] = int(start) if start.isdigit() else start
    arguments = [replay, "--store", store, "--limit", json.dumps(limit)]
    program = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    around = lambda time: window(ZoneInfo(zone), unit, start, time // 1_000_000)
    now = chance.randrange(*TIMES) * 1_000_000
    keys = {name: Key() for name in "abc"}
    receipts, history = [], []
    for _ in range(CHECKS):
        # A receipt names its charge by the time, so no two charges are of one microsecond.
        now += 1
        step = chance.random()
        if step < 0.04:
            now += chance.randrange(2 * LENGTHS[unit]) * 1_000_000
        elif step < 0.5:
            now += chance.randrange(LENGTHS[unit]) * 1_000_000 // 40
        elif step < 0.55:
            # Not into the window before, of which a store may have kept the state, or not.
            now = max(now - chance.randrange(60_000_000), around(now)[0])
        elif step < 0.6:
            # The last microsecond of a window, or its end.
            now = around(now)[1] - chance.randrange(2)
        check = {"at_us": now, "key": chance.choice("aaabc"), "cost": chance.choice([0, 1, 1, 2, units])}
        check["op"] = chance.choice(["charge"] * 8 + ["peek", "refund", "reset"])
        receipt = None
        if check["op"] == "refund":
            mine = [it for it in receipts if it[0] == check["key"]]
            if not mine:
                continue
            name, at, cost = chance.choice(mine)
            receipts.remove((name, at, cost))
            receipt = (at, cost)
            check["cost"] = cost
            check["receipt"] = {"at_us": at, "cost": cost}
        if chance.random() < 0.05:
            units = chance.choice([1, 3, 10, 1_000_000])
            limit["quota"] = f"{units}/{unit}"
            check["limit"] = limit
        key = keys[check["key"]]
        end = around(now)[1]
        model, charged = expected(key, check["op"], units, check["cost"], now, end, receipt)
        if check["op"] == "reset":
            # If the clock steps back now, an old receipt may be of a time after the next charge.
            receipts = [it for it in receipts if it[0] != check["key"]]
        if charged:
            receipts.append((check["key"], now, check["cost"]))
        program.stdin.write(json.dumps(check) + "\n")
        program.stdin.flush()
        answer = json.loads(program.stdout.readline())
        answer = {name: answer[name] for name in model}
        history.append((check, answer))
        if answer != model:
            print(limit)
            for before, answered in [it for it in history if it[0]["key"] == check["key"]][-6:]:
                print(f"{before}\n  replay: {answered}")
            print(f"  model:  {model}")
            sys.exit(1)
    program.stdin.close()
    program.wait()
    return CHECKS


ZONES = sorted(available_timezones())


def main():
    seconds, replay = float(sys.argv[1]), sys.argv[2]
    seed = int(time.time())
    chance, started, checks, sequences = random.Random(seed), time.monotonic(), 0, 0
    print(f"seed {seed}", flush=True)
    with redis() as url:
        while time.monotonic() - started < seconds:
            for store in ["memory", url]:
                checks += sequence(chance, replay, store)
                sequences += 1
    print(f"{checks} checks of {sequences} calendars, in memory and on Redis, none differs")


main()
