"""Plan one model on two clusters and compare what each reaches.

Llama 3 70B in bfloat16, prompts of 2048 tokens and outputs of 64, on sixteen H100 and on sixty-four
TPU v5e: the layouts that cost least with at most 50 ms per output token, by the bound. Needs no JAX.
"""

import partita

CLUSTERS = ("h100:2x8", "tpu-v5e:8x8")


def main() -> None:
    for name in CLUSTERS:
        plan = partita.plan("llama3-70b", on=name, objective="cost", max_tpot="50ms")
        chips = plan.decode.setting.cluster.chips
        tokens_per_second = chips / plan.chosen.chip_seconds_per_output_token
        print(f"{name}: {chips} chips, mesh {plan.decode.setting.mesh}")
        print(f"  prefill {plan.prefill.layout.roles}, batch {plan.prefill.batch}")
        print(f"  decode  {plan.decode.layout.roles}, batch {plan.decode.batch}")
        print(f"  TPOT at least {plan.decode.step_seconds * 1e3:.1f} ms")
        print(f"  at most {tokens_per_second:,.0f} tokens/s, {tokens_per_second / chips:,.0f} per chip")


if __name__ == "__main__":
    main()
