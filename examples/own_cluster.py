"""Write a cluster of your own and plan on it.

Two nodes of four accelerators that no catalogue has. The same text in a file `mine.toml` works on the
command line: `partita plan llama3-8b --on mine.toml`. Without a profile the plan has bounds and no estimates.
"""

import tempfile
from pathlib import Path

import partita

CLUSTER = """
[chip]
name = "my-accelerator"
peak_flops = { bf16 = 400e12 }      # dense
hbm_bytes = 64_000_000_000
hbm_bandwidth = 1.6e12

[[fabric]]                          # slowest axis first: the network between the nodes
kind = "network"
size = 2
link_bandwidth = 12.5e9             # of one link, in one direction

[[fabric]]                          # then the switch inside a node
kind = "switch"
size = 4
link_bandwidth = 25e9
links = 8                           # links of one chip
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "mine.toml")
        file.write_text(CLUSTER, encoding="utf-8")
        plan = partita.plan("llama3-8b", on=str(file), prompt=1024, output=128, batch=32)
    for phase in plan.predictions():
        memory = phase.memory_bytes
        print(f"{phase.phase}: {phase.layout.roles} on {phase.setting.mesh}, batch {phase.batch}")
        print(f"  step at least {phase.step_seconds * 1e3:.2f} ms, estimate: {phase.estimate}")
        print(f"  {memory['total'] / 1e9:.1f} of {memory['capacity'] / 1e9:.1f} GB per chip")


if __name__ == "__main__":
    main()
