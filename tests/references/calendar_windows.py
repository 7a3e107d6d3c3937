"""A second implementation of the windows of calendars, on Python's zoneinfo.

Reads lines of a zone, a unit, a start, a time in seconds, and the start and the end in
microseconds that tollgate has for the window of that time. Fails if they are others here.
"""

import calendar
import sys
from datetime import date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

WEEKDAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
EPOCH = date(1970, 1, 1)
MONDAY = date(1969, 12, 29)


def instant(day, hour, zone):
    """Of an hour that comes twice, the first one. One that is skipped is later by the gap."""
    local = datetime(day.year, day.month, day.day, hour, tzinfo=zone, fold=0)
    return int(local.astimezone(timezone.utc).timestamp()) * 1_000_000


def day_of_month(year, month, day):
    return date(year, month, min(day, calendar.monthrange(year, month)[1]))


def first_day(unit, start, place):
    """The first day of a window, by its number from 1970 on."""
    if unit == "day":
        return EPOCH + timedelta(place)
    if unit == "week":
        return MONDAY + timedelta(7 * place + (WEEKDAYS.index(start) if start else 0))
    if unit == "month":
        return day_of_month(1970 + place // 12, place % 12 + 1, int(start or 1))
    month, day = map(int, start.split("-")) if start else (1, 1)
    return day_of_month(1970 + place, month, day)


def window(zone, unit, start, time):
    words = start.split()
    hour = next((int(word[:2]) for word in words if ":" in word), 0)
    start = next((word for word in words if ":" not in word), "")
    day = datetime.fromtimestamp(time, zone).date()
    place = {
        "day": (day - EPOCH).days,
        "week": (day - MONDAY).days // 7,
        "month": 12 * (day.year - 1970) + day.month - 1,
        "year": day.year - 1970,
    }[unit]
    near = range(place - 3, place + 4)
    starts = [instant(first_day(unit, start, it), hour, zone) for it in near]
    time *= 1_000_000
    return max(it for it in starts if it <= time), min(it for it in starts if it > time)


def main():
    zones, lines, wrong = {}, 0, []
    for line in sys.stdin:
        name, unit, start, time, *expected = line.rstrip("\n").split("|")
        zone = zones.setdefault(name, ZoneInfo(name))
        found = window(zone, unit, start, int(time))
        lines += 1
        if found != tuple(map(int, expected)):
            wrong.append(f"{line.rstrip()}, and here {found}")
    print(f"{lines} windows of {len(zones)} zones, {len(wrong)} differ", *wrong[:10], sep="\n")
    sys.exit(1 if wrong or lines < 100_000 else 0)


if __name__ == "__main__":
    main()
