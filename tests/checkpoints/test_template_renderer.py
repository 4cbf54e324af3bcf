"""The process that renders templates: endless ones end it and nothing else, and it is always replaced."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.sizes import every

from partita.checkpoints.chat_template import ChatTemplate, TemplateLimit
from partita.checkpoints.template_renderer import TemplateRenderer

HI = [{"role": "user", "content": "hi"}]
BIG = "{% for i in range(99999) %}"


@pytest.fixture
def renderer() -> Iterator[TemplateRenderer]:
    renderer = TemplateRenderer()
    yield renderer
    renderer.close()


ENDLESS = [
    f"{BIG * 3}{'{% endfor %}' * 3}",
    "{{ 'x' * 10**10 }}",
    "{{ messages[0].content * 10**10 }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '{:>10000000000}'.format(1) }}",
    "{{ 'x'.ljust(10**10) }}",
    "{{ 'x' | center(10**10) }}",
    "{{ [1] | tojson(indent=10**10) }}",
    "{{ ([1] * 10**10) | length }}",
    "{{ (messages * 10**9) | length }}",
    "{{ 10**(10**10) }}",
    "{{ lipsum(n=10**8) }}",
    "{{ 'abc' | slice(10**9) | list }}",
    "{% set n = namespace(s='x') %}" + BIG + "{% set n.s = n.s ~ n.s %}{% endfor %}",
    "{% macro f(n) %}{% if n > 1 %}{{ f(n - 1) }}{{ f(n - 2) }}{% endif %}{% endmacro %}{{ f(60) }}",
    BIG + "{{ 'x' * 1000 }}{% endfor %}",
]


@pytest.mark.parametrize("source", every(3, ENDLESS))
def test_a_template_without_end_ends_with_one_line(source: str):
    with pytest.raises(TemplateLimit, match=r"^tokenizer\.chat_template: [^\n]+$"):
        ChatTemplate(source, {}).render(HI)
    assert ChatTemplate("{{ messages[0].content }}", {}).render(HI) == "hi"


@pytest.mark.parametrize(
    "source",
    [
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ range(10**10) | length }}",
        "{{ (10**4400) | string }}",
    ],
)
def test_what_jinja_itself_bounds_is_one_line_too(renderer: TemplateRenderer, source: str):
    found = renderer.render(source, {})
    assert found.keys() <= {"refused", "invalid"}
    assert "\n" not in next(iter(found.values()))


@pytest.mark.parametrize("source", ["{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}", "{% if 1 %}" * 4_000])
def test_a_template_that_nests_too_deep_is_not_valid(renderer: TemplateRenderer, source: str):
    assert "invalid" in renderer.render(source, {})


def test_one_of_another_size_altogether_is_not_read():
    with pytest.raises(ValueError, match=r"^tokenizer\.chat_template: .*2,000,000 characters"):
        ChatTemplate("x" * 2_000_000, {}).render(HI)


def test_a_long_chat_is_given_the_time_and_memory_it_needs(renderer: TemplateRenderer):
    messages = [{"role": "user", "content": "Zürich 🌦 " * 50}] * 5_000
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}"
    found = renderer.render(source, {"messages": messages})
    assert found == {"text": f"<user>{('Zürich 🌦 ' * 50).strip()}" * 5_000}
    assert renderer.render("{{ x }}", {"x": 1}) == {"text": "1"}


def test_text_of_any_characters_comes_back(renderer: TemplateRenderer):
    text = "\n\r\u2028\0🌦\ud800\x7f'\"\\"
    assert renderer.render("{{ x }}", {"x": text}) == {"text": text}


def test_many_threads_render_while_the_process_is_killed(renderer: TemplateRenderer):
    def work(number: int) -> list[dict[str, str]]:
        return [renderer.render("{{ x }}", {"x": f"{number} {i}"}) for i in range(30)]

    with ThreadPoolExecutor(8) as pool:
        done = [pool.submit(work, number) for number in range(8)]
        for _ in range(3):
            kill(renderer, "{{ 'killed' }}")
        found = [future.result() for future in done]
    assert found == [[{"text": f"{number} {i}"} for i in range(30)] for number in range(8)]


def kill(renderer: TemplateRenderer, source: str) -> None:
    """Kills the process once it has rendered something."""
    renderer.render(source, {})
    process = renderer._process
    assert process is not None
    process.kill()


def test_a_killed_process_is_replaced(renderer: TemplateRenderer):
    for _ in range(2):
        kill(renderer, "x")
        assert renderer.render("{{ x }}", {"x": 1}) == {"text": "1"}


def test_a_process_that_does_not_answer_is_ended(renderer: TemplateRenderer):
    renderer.render("x", {})
    process = renderer._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    renderer.patience = 0.2
    assert "0.2 seconds" in renderer.render("x", {})["limit"]
    assert process.poll() is not None
    renderer.patience = 20
    assert renderer.render("x", {}) == {"text": "x"}


def test_where_no_process_can_be_started_it_says_so(
    renderer: TemplateRenderer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    renderer.start()
    assert "can be started" in renderer.render("x", {})["refused"]


def test_a_program_ends_with_its_renderer_and_a_fork_has_one_of_its_own(tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\n"
        "from partita.checkpoints.template_renderer import RENDERER\n"
        "assert RENDERER.render('{{ x }}', {'x': 1}) == {'text': '1'}\n"
        "print(RENDERER._process.pid, flush=True)\n"
        "child = os.fork()\n"
        "assert RENDERER.render('{{ x }}', {'x': child}) == {'text': str(child)}\n"
        "if child:\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "    assert 'jax' not in sys.modules and 'jinja2' not in sys.modules\n",
        encoding="utf-8",
    )
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_it_works_off_the_main_thread():
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(ChatTemplate("ok", {}).render(HI)))
    thread.start()
    thread.join()
    assert found == ["ok"]
