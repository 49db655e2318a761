"""Some seconds of load by a real load client: every call is answered, and rightly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.server.running import serving

LOCUSTFILE = Path(__file__).with_name("locustfile.py")


def test_locust_sees_no_failure() -> None:
    with serving(max_num_seqs=4, num_blocks=60) as server:
        command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--host", server.url, "--headless", "--json"]
        done = subprocess.run(
            [*command, "-u", "8", "-r", "8", "-t", "4s", "--stop-timeout", "10"],
            capture_output=True,
            text=True,
            check=False,
        )
        server.rest()

    assert done.returncode == 0, done.stderr[-2000:]
    found = {entry["name"]: entry for entry in json.loads(done.stdout)}
    assert {"/v1/completions", "/v1/chat/completions", "/metrics", "/health/ready"} == set(found)
    assert all(entry["num_failures"] == 0 and entry["num_requests"] > 5 for entry in found.values())
