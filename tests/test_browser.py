"""The lessons in a real JupyterLab, in a real browser: open the first, run all, look."""

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

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
        "IdentityProvider": {"token": ""}}))
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
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    url, folder = lab
    first = min(folder.glob("*.ipynb"))
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    page.goto(f"{url}/lab/tree/{first.name}")
    page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=90_000)
    assert page.locator(".jp-Notebook .jp-OutputArea-output").count() == 0
    idle = '.jp-Notebook-ExecutionIndicator[data-status="idle"]'
    page.wait_for_selector(idle, timeout=90_000)      # the kernel is up
    for _ in range(5):                                # a busy page may miss a click
        page.get_by_role("menuitem", name=re.compile("^Run$")).click()
        page.wait_for_timeout(1000)                   # the menu opens
        page.get_by_text(re.compile("^Run All Cells$")).click()
        try:
            page.wait_for_selector(".jp-OutputArea-output", timeout=40_000)
            break
        except playwright.TimeoutError:
            page.keyboard.press("Escape")             # closes a menu that is still open
    # Finished: the kernel is idle again, and there is a figure.
    deadline = time.time() + 480                      # a busy machine
    while time.time() < deadline:
        if page.locator(idle).count() and page.locator(".jp-OutputArea-output img").count():
            break
        time.sleep(1)
    assert page.locator(".jp-OutputArea-output img").count() >= 1
    assert page.locator(
        '.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.error"]').count() == 0
    page.close()


def test_without_jupyterlab_the_command_says_what_to_install(tmp_path, monkeypatch, capsys):
    from minifpt import cli
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["lessons", str(tmp_path / "x")]) == 2
    assert "pip install jupyterlab" in capsys.readouterr().err
