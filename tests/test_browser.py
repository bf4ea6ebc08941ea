"""The lessons in a real JupyterLab, in a real browser: open the first, run all, look."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from test_lite import run_cells, wait

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "killpg"),
                                                   reason="needs POSIX signals")]


@pytest.fixture
def lab(tmp_path):
    """``minifpt lessons`` as a user starts it, except for the port and the token; its URL."""
    pytest.importorskip("jupyterlab", reason="needs JupyterLab: pip install '.[lessons]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = tmp_path / "config"
    config.mkdir()
    (config / "jupyter_server_config.json").write_text(json.dumps({
        "ServerApp": {"allow_root": True, "open_browser": False, "port": port,
                      "port_retries": 0, "ip": "127.0.0.1"},
        "IdentityProvider": {"token": ""}, "LabApp": {"expose_app_in_browser": True}}))
    env = os.environ | {"JUPYTER_CONFIG_DIR": str(config), "HOME": str(tmp_path)}
    server = subprocess.Popen([sys.executable, "-m", "minifpt", "lessons", tmp_path / "lessons"],
                              env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                              start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(f"{url}/api", timeout=2).read()
                break
            except OSError:
                assert server.poll() is None, server.stderr.read()[-2000:]
                time.sleep(0.5)
        yield url, tmp_path / "lessons"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.communicate(timeout=20)


def test_first_lesson_runs_in_jupyterlab(lab, browser):
    url, folder = lab
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    page.goto(f"{url}/lab/tree/{min(folder.glob('*.ipynb')).name}")
    wait(page, "notebook.sessionContext.session?.kernel?.status === 'idle'", 90)
    assert page.locator(".jp-Notebook .jp-OutputArea-output").count() == 0
    outputs = [output for cell in run_cells(page, 900) for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output["output_type"] == "error" for output in outputs)
    page.close()


def test_without_jupyterlab_the_command_says_what_to_install(tmp_path, monkeypatch, capsys):
    from minifpt import cli
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["lessons", str(tmp_path / "x")]) == 2
    assert "pip install jupyterlab" in capsys.readouterr().err
