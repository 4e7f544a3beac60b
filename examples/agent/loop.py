"""Ask a program that edits kernels until they are shown to be 10 % faster: `python loop.py CLONE COPY PROGRAM [ARG …]`.

CLONE is the judge's, with perfci's policy, and PROGRAM cannot write to it. PROGRAM runs in COPY, reads the last answer
as JSON from stdin, and edits `src/` there.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

clone, copy, *program = sys.argv[1:]
judge = ["perfci", "compare", "HEAD", "--only", "src/**", "--claim", "*: 10%", "--json"]
answer: dict = {}
for attempt in range(1, 11):
    subprocess.run(program, cwd=copy, input=json.dumps(answer), text=True, check=True)
    fresh = Path(f"{clone}.src")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(Path(copy, "src"), fresh, symlinks=True)
    shutil.rmtree(Path(clone, "src"))
    fresh.rename(Path(clone, "src"))
    counted = [*judge, "--attempt", str(attempt)]
    done = subprocess.run(counted, cwd=clone, stdout=subprocess.PIPE, text=True, check=False)
    answer = json.loads(done.stdout)
    print(f"attempt {attempt}: exit {done.returncode}: {answer.get('error') or answer['sentence']}", flush=True)
    if answer.get("verdict") == "pass":  # nothing is worse, and each claim is shown
        sys.exit(0)
sys.exit(1)
