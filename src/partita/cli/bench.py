"""`partita bench serve`: a load for any server that speaks OpenAI's API, and what its users saw."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from partita.cli import options as o
from partita.cli import plan_options as p
from partita.cli import simulate_options as s
from partita.cli.output import progress_bar, show, show_json
from partita.errors import InputError
from partita.specs.hardware import MEMORY_UTILIZATION

if TYPE_CHECKING:
    from partita.simulation.study import Study

_REQUESTS = 100
_OWN = "serve"


def command(
    what: Annotated[str, typer.Argument(metavar="serve", help="What is measured: a server.")],
    url: Annotated[
        str, typer.Option("--url", help="The server's address, up to /v1.")
    ] = "http://127.0.0.1:8000/v1",
    model: Annotated[
        str | None, typer.Option("--model", help="Model to ask. Default: the first that the server has.")
    ] = None,
    api: Annotated[
        str,
        typer.Option("--api", help="completions (prompts of exact lengths) or chat (of as many words)."),
    ] = "completions",
    api_key: Annotated[
        str | None, typer.Option("--api-key", help="Key to bring. Also PARTITA_API_KEY or OPENAI_API_KEY.")
    ] = None,
    plain: Annotated[
        bool,
        typer.Option("--plain", help="Send OpenAI's own fields only; outputs may then end early."),
    ] = False,
    vocabulary: Annotated[
        int, typer.Option("--vocabulary", help="Prompts are of random token ids below this.")
    ] = 1000,
    temperature: Annotated[float, typer.Option("--temperature", help="Of the requests.")] = 0.0,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds without a sign of the server.")
    ] = 600.0,
    rate: s.Rate = None,
    arrivals: s.Arrivals = "poisson",
    clients: s.Clients = None,
    trace: s.Trace = None,
    requests: Annotated[
        int | None,
        typer.Option("--requests", help=f"How many. Default: {_REQUESTS}, or all of a trace with arrivals."),
    ] = None,
    skip: s.Skip = None,
    prompt: p.Prompt = None,
    output: p.Output = None,
    prefix: p.Prefix = None,
    max_ttft: s.MaxTtft = None,
    max_tpot: s.MaxTpot = None,
    seed: s.Seed = 0,
    against: Annotated[
        str | None,
        typer.Option(
            "--against", metavar="MODEL|PLAN", help="Simulate it too: MODEL with --on, or a plan.json."
        ),
    ] = None,
    on: s.On = None,
    policy: Annotated[
        str,
        typer.Option("--policy", help="Of the simulation: serve (this engine's own), or as in simulate."),
    ] = _OWN,
    chunk: o.RunChunk = None,
    slots: s.Slots = None,
    mesh: o.MeshText = None,
    ffn: s.FfnText = None,
    attention: s.AttentionText = None,
    prefill_ffn: o.PrefillFfn = None,
    prefill_attention: o.PrefillAttention = None,
    weights: o.Weights = "bf16",
    kv: o.Kv = "bf16",
    activations: o.Activations = "bf16",
    by: s.By = None,
    json: o.AsJson = False,
) -> None:
    """Send a load to a server; show times that users see, throughput, and the simulation of the same."""
    if what != "serve":
        raise InputError("what", what, "accepted is serve")
    if api not in ("completions", "chat"):
        raise InputError("api", api, "accepted are completions, chat")
    if not 1 <= vocabulary < 2**31:
        raise InputError("vocabulary", vocabulary, "a whole number of at least 1 is accepted")
    if not 0 <= temperature <= 100:
        raise InputError("temperature", temperature, "a number from 0 to 100 is accepted")
    if not 0 < timeout < float("inf"):
        raise InputError("timeout", timeout, "a number above 0 is accepted")
    limits = s.read_limits(max_ttft, max_tpot)
    if requests is None and (rate is not None or clients is not None):
        requests = _REQUESTS
    tokens = p.TokenOptions(prompt, output, prefix, trace, None)
    asked = s.LoadOptions(tokens, rate, arrivals, clients, requests, seed)
    traffic, load = asked.load()
    skipped = asked.skipped(skip, load)

    def simulated() -> Study | None:
        """The same load, simulated."""
        if against is None:
            if on is not None:
                raise InputError("on", on, "needs --against MODEL")
            return None
        from partita.server.policy import own_policy
        from partita.simulation.study import study

        formats = o.read_formats(weights, kv, activations, "f32")
        layouts = (mesh, ffn, attention, prefill_ffn, prefill_attention)
        described = s.ServerOptions(against, on, *layouts, slots, formats, MEMORY_UTILIZATION)
        server = described.server(traffic, load)
        basis = s.read_basis(server, by)
        most = chunk or server.setting.workload.chunk or 256
        policies = [own_policy(server.slots, most)] if policy == _OWN else s.read_policies(policy)
        if len(policies) > 1:
            raise InputError("policy", policy, "one policy is accepted")
        said = asked.as_json(load)
        return study(server, policies, load, basis=basis, limits=limits, said=said, skip=skipped)

    beside = simulated()  # what is wrong with it is said before a server is put to work
    from partita.measure.load_test import Target, find_model, run_load
    from partita.report.load_test import load_note, load_table

    variables = map(os.environ.get, ("PARTITA_API_KEY", "OPENAI_API_KEY"))
    key = api_key if api_key is not None else next(filter(None, variables), "")
    target = Target(url, model or find_model(url, key), api, key, plain, vocabulary, temperature, timeout)
    with progress_bar(remaining=True) as tell:
        measured = run_load(
            target, load, seed, skipped, lambda done, of: tell(f"{done:,} of {of:,} requests", done, of)
        )
    if json:
        load_said = {**asked.as_json(load), "skipped": skipped}
        shown = None if beside is None else beside.as_json()["policies"][0]
        show_json({**measured.as_json(limits), "load": load_said, "simulated": shown})
        return
    show(
        load_table(measured, limits, None if beside is None else beside.runs[0].result),
        load_note(measured, skipped),
    )
