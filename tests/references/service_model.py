"""A model of quotas, plans, overrides and usage, beside a service.

    service_model.py SECONDS SERVICE TOLLGATE

Starts `SERVICE`, the example `live_configuration`, twice on one Redis, with a random month, week or
day of the calendar. Sends both of them requests of random users, changes overrides with `TOLLGATE`,
the command, and compares each answer with the model. Stops at the first difference.
"""

import http.client
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from zoneinfo import ZoneInfo, available_timezones

from calendar_windows import window
from redis_server import free_port, redis

ZONES = sorted(available_timezones())
STARTS = {
    "day": ["", "06:00", "22:00"],
    "week": ["", "sunday", "wednesday 23:00"],
    "month": ["", "15", "31", "29 01:00"],
    "year": ["", "02-29", "04-01 06:00"],
}
PLANS = {"pro": ("quota", 60), "internal": ("unlimited",), "closed": ("denied",)}
QUOTAS = {"rolling": 20, "billed": 50}
# The user whose override is in the file.
FILED = "filed"
SECONDS_PER_SERVICE = 8
FOLLOWED_WITHIN = 1.5


class Model:
    """What each user has used, and the overrides that were set."""

    def __init__(self):
        self.used, self.overrides = {}, {}

    def effect(self, limit, user, plan):
        override = self.overrides.get((limit, user))
        if override:
            return override
        if limit == "rolling" and user == FILED:
            return ("quota", 35)
        if limit == "rolling" and plan in PLANS:
            return PLANS[plan]
        return ("quota", QUOTAS[limit])

    def is_overridden(self, limit, user):
        return (limit, user) in self.overrides or (limit, user) == ("rolling", FILED)

    def left(self, limit, user, quota):
        return max(0, quota - self.used.get((limit, user), 0))

    def request(self, user, plan):
        """The status of a request, and what is left of the limit with the least."""
        effects = {limit: self.effect(limit, user, plan) for limit in QUOTAS}
        if any(effect == ("denied",) for effect in effects.values()):
            return 403, None
        quotas = {limit: effect[1] for limit, effect in effects.items() if effect[0] == "quota"}
        if not all(self.left(limit, user, quota) for limit, quota in quotas.items()):
            return 429, None
        for limit in quotas:
            self.used[limit, user] = self.used.get((limit, user), 0) + 1
        left = [self.left(limit, user, quota) for limit, quota in quotas.items()]
        return 200, min(left) if left else None

    def usage(self, limit, user, plan):
        """The capacity, what is left, and whether the key is denied. None: nothing limits it."""
        effect = self.effect(limit, user, plan)
        by_plan = (limit, user) not in self.overrides
        if effect == ("unlimited",) or (effect == ("denied",) and by_plan):
            return None
        if effect == ("denied",):
            return "denied"
        return effect[1], self.left(limit, user, effect[1])


class Replicas:
    """Two processes of the service, and the command for their overrides."""

    def __init__(self, url, limits, service, tollgate, stack):
        self.url, self.tollgate, self.connections = url, tollgate, []
        for _ in range(2):
            port = free_port()
            settings = {"PORT": str(port), "REDIS_URL": url, "LIMITS": limits}
            process = subprocess.Popen([service], env={**os.environ, **settings}, stdout=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
            self.connections.append(connect(port))

    def get(self, replica, path, user, plan):
        connection = self.connections[replica]
        headers = {"x-user": user, **({"x-plan": plan} if plan else {})}
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        left = response.headers.get("x-ratelimit-remaining")
        return response.status, left and int(left), response.read()

    def usage(self, replica, user, plan):
        _, _, body = self.get(replica, "/me/limits", user, plan)
        return {usage["limit"]: usage for usage in json.loads(body)}

    def override(self, *arguments):
        command = [self.tollgate, "override", "--url", self.url, "--prefix", "live-configuration"]
        subprocess.run(command + list(arguments), check=True, capture_output=True)


def connect(port):
    """A connection, as soon as the service listens."""
    end = time.monotonic() + 20
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        try:
            connection.connect()
            return connection
        except ConnectionRefusedError:
            if time.monotonic() > end:
                sys.exit("the service did not start")
            time.sleep(0.02)


class Session:
    """One pair of replicas, with random requests and overrides."""

    def __init__(self, chance, replicas, unit, end):
        self.chance, self.replicas, self.unit, self.end = chance, replicas, unit, end
        self.model = Model()
        self.users = [FILED] + [f"user{number}" for number in range(12)]
        self.requests = self.changes = 0

    def step(self):
        user = self.chance.choice(self.users)
        plan = self.chance.choice([None, None, *PLANS])
        step = self.chance.random()
        if step < 0.01:
            self.change_override(user)
        elif step < 0.05:
            self.compare_usage(self.chance.randrange(2), user, plan)
        else:
            self.compare_request(self.chance.randrange(2), user, plan)
        if self.chance.random() < 0.01:
            place = self.chance.randrange(1, len(self.users))
            self.users[place] = f"user{self.requests + 100}"

    def change_override(self, user):
        limit = self.chance.choice(list(QUOTAS))
        quotas = [("quota", units) for units in (1, 5, 30, 200)]
        override = self.chance.choice([*quotas, ("unlimited",), ("denied",), None])
        known = self.model.overrides.pop((limit, user), None)
        if override is None:
            if known is None:
                return
            self.replicas.override(user, "--name", limit, "--remove")
        else:
            self.model.overrides[limit, user] = override
            period = "24h" if limit == "rolling" else self.unit
            effect = {
                "quota": lambda: ["--quota", f"{override[1]}/{period}"],
                "unlimited": lambda: ["--unlimited"],
                "denied": lambda: ["--deny"],
            }
            self.replicas.override(user, "--name", limit, *effect[override[0]](), "--for", "1h")
        self.changes += 1
        end = time.monotonic() + FOLLOWED_WITHIN
        while True:
            # Before it is compared, so that a pause of this process is no difference.
            is_late = time.monotonic() > end
            differing = [it for it in map(lambda replica: self.difference(replica, user, None), range(2)) if it]
            if not differing:
                return
            if is_late:
                sys.exit(f"DIFFERS: {override} of {user} under {limit} is not followed: {differing[0]}")

    def compare_usage(self, replica, user, plan):
        differing = self.difference(replica, user, plan)
        if differing:
            sys.exit(f"DIFFERS: the usage of {user} with the plan {plan}: {differing}")

    def difference(self, replica, user, plan):
        usages = self.replicas.usage(replica, user, plan)
        for limit in QUOTAS:
            expected, usage = self.model.usage(limit, user, plan), usages.get(limit)
            if usage is None:
                found = None
            elif usage["blocked_for"] is not None:
                found = "denied"
            else:
                found = (usage["capacity"], usage["remaining"])
            if found != expected:
                return f"{limit}: {usage}, and not {expected}"
            if usage and usage["overridden"] != self.model.is_overridden(limit, user):
                return f"{limit}: {usage}, which is wrong about its override"
            has_used = isinstance(found, tuple) and found[1] < found[0]
            if limit == "billed" and has_used and usage["reset_at"] != self.end:
                return f"{limit}: {usage}, whose window ends at {self.end}"
        return None

    def compare_request(self, replica, user, plan):
        status, left, body = self.replicas.get(replica, "/search", user, plan)
        self.requests += 1
        expected = self.model.request(user, plan)
        found = (status, left if expected[1] is not None else None)
        if found != expected:
            effects = {limit: self.model.effect(limit, user, plan) for limit in QUOTAS}
            sys.exit(f"DIFFERS: {user} with the plan {plan}, {effects}: {found} {body}, and not {expected}")


@contextmanager
def session(chance, service, tollgate):
    with ExitStack() as stack:
        url = stack.enter_context(redis())
        zone, unit = chance.choice(ZONES), chance.choice(list(STARTS))
        starts = chance.choice(STARTS[unit])
        _, end = window(ZoneInfo(zone), unit, starts, int(time.time()))
        limits = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".toml"))
        limits.write(f"""
            [[limits]]
            name = "rolling"
            algorithm = "fixed_window"
            quota = "{QUOTAS['rolling']}/24h"
            key = "user"
            plan = "account"
            plans.pro.quota = "60/24h"
            plans.internal.unlimited = true
            plans.closed.deny = "closed"
            overrides.{FILED}.quota = "35/24h"

            [[limits]]
            name = "billed"
            algorithm = "fixed_window"
            quota = "{QUOTAS['billed']}/{unit}"
            time_zone = "{zone}"
            {f'starts = "{starts}"' if starts else ''}
            key = "user"
        """)
        limits.flush()
        replicas = Replicas(url, limits.name, service, tollgate, stack)
        yield Session(chance, replicas, unit, end // 1_000_000)


def main():
    seconds, service, tollgate = float(sys.argv[1]), sys.argv[2], sys.argv[3]
    seed = int(time.time())
    print(f"seed {seed}", flush=True)
    chance, started = random.Random(seed), time.monotonic()
    sessions = requests = changes = 0
    while time.monotonic() - started < seconds:
        with session(chance, service, tollgate) as running:
            end = min(time.monotonic() + SECONDS_PER_SERVICE, started + seconds)
            # Not across the end of a window, at which the model would have to know the very time.
            while time.monotonic() < end and time.time() < running.end - 5:
                running.step()
        sessions += 1
        requests += running.requests
        changes += running.changes
    print(f"{requests} requests and {changes} overrides of {sessions} calendars, on two replicas, none differs")


main()
