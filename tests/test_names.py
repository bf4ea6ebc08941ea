"""Names of trunks: paths of Windows, and folders that can be made there."""

from pathlib import PureWindowsPath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minifpt.experiments.compare import Arm
from minifpt.trunks.names import TrunkSpec


def test_a_mixed_trunk_may_begin_with_a_file_of_one_s_own():
    spec = TrunkSpec.parse("mine.py:Walk+attn=random")
    assert (spec.kind, spec.base.kind, spec.other.kind) == ("mixed", "own", "random")
    with pytest.raises(ValueError, match="expected FILE.py:NAME alone"):
        TrunkSpec.parse("mine.py:Walk@1.41")


@pytest.mark.parametrize("text, kind, name", [
    (r"C:\my work\mine.py:Walk", "own", r"C:\my work\mine.py:Walk"),
    (r"C:\weights\w.npz", "weights", r"C:\weights\w.npz"),
    (r"\\server\share\gpt2", "weights", r"\\server\share\gpt2"),
    (r"statistics:C:\weights\w.npz", "statistics", r"C:\weights\w.npz"),
    ("random:1x4x256@0.55", "random", "1x4x256")])
def test_models_may_have_windows_paths(text, kind, name):
    spec = TrunkSpec.parse(text)
    assert (spec.kind, spec.name) == (kind, name)


@given(text=st.text(st.sampled_from(r"""C:\/ab*?<>|"'+=,.@1é~"""), min_size=1), full=st.booleans())
@example(text=r"C:\w\mine.py:Walk", full=True)
def test_a_model_s_folder_can_be_made_on_windows(text, full):
    spec = TrunkSpec(text, "weights", text)
    assert not {*spec.folder} & {*'<>:"/\\|?*'}
    name = Arm("random:1x4x256@0.5", "attn,h.*.ln_1.*" if full else "fpt").folder
    assert not {*name} & {*'<>:"/\\|?*'} and PureWindowsPath(name).name == name
