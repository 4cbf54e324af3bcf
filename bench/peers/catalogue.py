"""The peers: what each is, pinned to what, how it comes to run here, and what one configuration of it is.

Knows no timing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """A tool that prices Transformer inference from a model of the hardware, and the runner that calls it.

    requirements: what pip installs into its environment. version: of the package, or the commit of the
    checkout that `--source` must name for a peer that no registry has.
    """

    name: str
    runner: str
    homepage: str
    version: str
    requirements: tuple[str, ...]
    checkout: bool
    configuration: str

    @property
    def comes_as(self) -> str:
        return f"checkout of {self.homepage}" if self.checkout else "PyPI"


PEERS = (
    Peer(
        "llm-viewer",
        "run_llm_viewer.py",
        "https://github.com/hahnyuan/LLM-Viewer",
        "472f71f1a1807e80b573252e9185fd5e8d795e95",
        ("transformers==4.57.6",),
        True,
        "batch and context of one phase on one chip (no parallelism); both phases a call",
    ),
    Peer(
        "llm-analysis",
        "run_llm_analysis.py",
        "https://github.com/cli99/llm-analysis",
        "0.2.2",
        ("llm-analysis==0.2.2",),
        False,
        "tensor-parallel size, batch and context of one phase; both phases a call",
    ),
    Peer(
        "calculon",
        "run_calculon.py",
        "https://github.com/calculon-ai/calculon",
        "caa4b11f8fe1fee3ba57adaacb7590d7deabd053",
        ("pandas==3.1.1", "psutil==7.2.2"),
        True,
        "tensor-parallel size, batch and prompt of a prefill; it has no decode",
    ),
    Peer(
        "genz",
        "run_genz.py",
        "https://github.com/abhibambhaniya/GenZ-LLM-Analyzer",
        "0.0.16",
        ("genz-llm==0.0.16",),
        False,
        "tensor-parallel size, batch and context of one phase; a call for each",
    ),
    Peer(
        "aiconfigurator",
        "run_aiconfigurator.py",
        "https://github.com/ai-dynamo/aiconfigurator",
        "0.12.0",
        ("aiconfigurator==0.12.0",),
        False,
        "tensor-parallel size, batch and context of one phase; a call for each",
    ),
)
