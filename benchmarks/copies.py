"""Times copies between host and device beside two memcpys of the same size, in turn.

python copies.py --rounds 15

Runs in a session; prints, per size in bytes, the seconds of every round as JSON.
"""

import argparse
import json
import time

import torch

SIZES = (1 << 20, 8 << 20, 64 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    result: dict[int, dict[str, list[float]]] = {}
    for size in SIZES:
        host = torch.ones(size, dtype=torch.uint8)
        first, second = torch.zeros_like(host), torch.zeros_like(host)
        device = torch.empty(size, dtype=torch.uint8, device="cuda")
        back = torch.zeros_like(host)
        repeat = max(1, (8 << 20) // size)  # one copy of a small size is too short to time

        def memcpys(a=host, b=first, c=second, n=repeat):
            for _ in range(n):
                b.copy_(a)
                c.copy_(b)

        def to_device(a=host, d=device, n=repeat):
            for _ in range(n):
                d.copy_(a)
            torch.cuda.synchronize()

        def to_host(a=back, d=device, n=repeat):
            for _ in range(n):
                a.copy_(d)

        took: dict[str, list[float]] = {"memcpys": [], "h2d": [], "d2h": []}
        for number in range(rounds + 2):
            for name, copy in (("memcpys", memcpys), ("h2d", to_device), ("d2h", to_host)):
                start = time.perf_counter()
                copy()
                if number >= 2:
                    took[name].append((time.perf_counter() - start) / repeat)
        if not torch.equal(back, host):
            raise SystemExit("a copy came back changed")
        result[size] = took
    print(json.dumps(result))


if __name__ == "__main__":
    main()
