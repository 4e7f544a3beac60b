"""What stands in the place of a measuring process: a module that is imported fast, as each process does it anew."""

import json
import os
import random
import signal
import time
from multiprocessing.connection import Connection

from perfci.measure.request import Request
from perfci.measure.shards import host
from perfci.measure.shards.host import Member
from perfci.model.base import UsageError

STEPS = 4


def step(request: Request, member: Member, connection: Connection) -> None:
    """In the place of a measurement: writes down when each step begins and ends, and dies where it is told to."""
    line = host._Line(connection)
    rng = random.Random(member.name)
    with (request.where.out / f"{member.name}.jsonl").open("a", buffering=1) as file:
        for number in range(STEPS):
            print(json.dumps({"step": number, "begins": time.monotonic()}), file=file)
            if member.env.get("DIES") == str(number):
                os.kill(os.getpid(), signal.SIGKILL)
            if member.env.get("REFUSES") == str(number):
                return line.refused(UsageError("it is not to be"))
            time.sleep(0.05 * rng.random())
            print(json.dumps({"step": number, "ends": time.monotonic()}), file=file)
            if number < STEPS - 1:
                line.barrier()
    return line.over()
