"""Measures the machine at hand and makes a cluster of it, with the profile of what its chips reach.

One file for each kind of measurement (`matmul`, `memory`, `collectives`, `layers`): what to measure, the
programs that are timed, and what a profile makes of them. `constants` fits the profile; `run` is the whole.

CPU devices are threads that share the cores of one processor. Every program runs on all of them at once, so
the work of all adds up: a device's peaks are its part of what they reach together, a collective is a copy
in one memory (`own_share`), and the more take part in it the longer they wait for one another
(`hop_seconds`).
"""
